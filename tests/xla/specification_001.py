"""The code of specification 001, as it stands in its document but for blanks at ends of lines."""

from __future__ import annotations

# Of a pack: __init__.py and utils.py.
INIT = r'''
"""
ComfyUI {ModelName} TPU Nodes
"""
import os
import jax
from jax.experimental import mesh_utils
from jax.sharding import Mesh

# JAX 编译缓存
jax_cache_dir = os.path.expanduser("~/.cache/jax_cache")
os.makedirs(jax_cache_dir, exist_ok=True)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", jax_cache_dir)
print(f"✓ JAX 编译缓存: {jax_cache_dir}")

# 创建 TPU Mesh
try:
    devices = jax.devices('tpu')
    print(f"[{__name__}] Detected {len(devices)} TPU cores")
except:
    devices = jax.devices('cpu')
    print(f"[{__name__}] WARNING: No TPU detected, falling back to CPU")

tp_dim = len(devices)
mesh = Mesh(mesh_utils.create_device_mesh((tp_dim,), allow_split_physical_axes=True), ("tp",))
print(f"[{__name__}] Created Mesh: tp={tp_dim}")

# 注册 PyTree 节点（如果模型需要）
# from diffusers.xxx import XxxOutput
# jax.tree_util.register_static(XxxOutput)

# 导出节点
from .nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
__all__ = ['NODE_CLASS_MAPPINGS', 'NODE_DISPLAY_NAME_MAPPINGS']
'''

UTILS = r'''
"""
工具函数：权重分片、XLA 转换等
"""
import re
import jax
from jax.sharding import PartitionSpec as P, NamedSharding

# 权重分片规则（根据模型结构调整）
# 格式: { "正则表达式": PartitionSpec }
TRANSFORMER_SHARDINGS = {
    # 注意力权重沿头维度分片
    r".*\.attn\..*\.weight": P("tp", None),
    # FFN 权重
    r".*\.ff\.net\.0\.proj\.weight": P(None, "tp"),
    r".*\.ff\.net\.2\.weight": P("tp", None),
    # 其他权重复制
    r".*": P(),
}

VAE_DECODER_SHARDINGS = {
    r".*": P(),  # VAE 通常复制
}


def shard_weight_dict(params, sharding_rules, mesh):
    """对权重字典应用分片规则"""
    def get_sharding(name):
        for pattern, spec in sharding_rules.items():
            if re.match(pattern, name):
                return NamedSharding(mesh, spec)
        return NamedSharding(mesh, P())

    sharded_count, replicated_count = 0, 0
    sharded_size, replicated_size = 0, 0

    def shard_param(path, param):
        nonlocal sharded_count, replicated_count, sharded_size, replicated_size
        name = ".".join(str(p) for p in path)
        sharding = get_sharding(name)

        if hasattr(param, '_elem'):
            jax_param = param._elem
        else:
            return param

        size = jax_param.size * jax_param.dtype.itemsize / 1e9
        if sharding.spec == P():
            replicated_count += 1
            replicated_size += size
        else:
            sharded_count += 1
            sharded_size += size

        return jax.device_put(jax_param, sharding)

    result = jax.tree_util.tree_map_with_path(shard_param, params)
    print(f"  分片统计: {sharded_count} 个分片 ({sharded_size:.2f}GB), {replicated_count} 个复制 ({replicated_size:.2f}GB)")
    return result


def move_module_to_xla(env, module):
    """将 PyTorch 模块移动到 XLA"""
    with jax.default_device("cpu"):
        state_dict = env.to_xla(module.state_dict())
        module.load_state_dict(state_dict, assign=True)
'''  # noqa: E501

# Of nodes.py: the environment, the operators, the template of a node.
MANAGER = r'''
class TorchaxEnvManager:
    """Torchax 环境的单例管理器"""
    _env = None
    _initialized = False

    @classmethod
    def get_env(cls, mesh_obj=None):
        """获取或创建全局 env"""
        if not cls._initialized:
            print("[TorchaxEnvManager] Initializing...")
            torchax.enable_globally()
            cls._env = torchax.default_env()
            _register_operators_on_env(cls._env, mesh_obj)
            cls._initialized = True
        return cls._env

    @classmethod
    def pause(cls):
        """临时暂停（用于模型加载）"""
        if cls._initialized:
            torchax.disable_globally()

    @classmethod
    def resume(cls):
        """恢复环境"""
        if cls._initialized:
            torchax.enable_globally()


class TorchaxContext:
    """Torchax 上下文管理器"""
    def __init__(self, mesh_obj=None):
        self.mesh = mesh_obj

    def __enter__(self):
        self.env = TorchaxEnvManager.get_env(self.mesh)
        return self

    def __exit__(self, *args):
        pass  # 默认不 disable
'''

OPERATORS = r"""
def _register_operators_on_env(env, mesh_obj):
    def override_op(op, impl):
        env._ops[op] = ops_registry.Operator(
            op, impl, is_jax_function=False, is_user_defined=True,
            needs_env=False, is_view_op=False,
        )

    # 示例：unflatten
    def unflatten_impl(input, dim, sizes, env=env):
        jinput = env.t2j_iso(input)
        # ... JAX 实现 ...
        return env.j2t_iso(result)

    override_op(torch.ops.aten.unflatten.int,
                functools.partial(unflatten_impl, env=env))
"""

NODE = r'''
class MyTPUNode:
    """TPU 推理节点模板"""

    _cached_model = None
    _cached_model_id = None

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "prompt": ("STRING", {"multiline": True}),
                "height": ("INT", {"default": 1024}),
                "width": ("INT", {"default": 1024}),
                "steps": ("INT", {"default": 50}),
                "seed": ("INT", {"default": 42}),
            },
            "optional": {
                "model_id": ("STRING", {"default": "model/path"}),
            }
        }

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "generate"
    CATEGORY = "TPU/MyModel"

    def generate(self, prompt, height, width, steps, seed, model_id="model/path"):
        model = self._get_or_create_model(model_id)

        with TorchaxContext() as ctx:
            # 推理逻辑
            result = model(...)

        return (result,)

    def _get_or_create_model(self, model_id):
        if self._cached_model is not None:
            return self._cached_model

        # 关键：加载模型前暂停 torchax
        was_initialized = TorchaxEnvManager._initialized
        if was_initialized:
            TorchaxEnvManager.pause()

        try:
            model = load_model(model_id)
        finally:
            if was_initialized:
                TorchaxEnvManager.resume()

        # 转换到 XLA 并编译
        with TorchaxContext() as ctx:
            move_module_to_xla(ctx.env, model)
            model = torchax.compile(model)
            model.params = shard_weight_dict(model.params, SHARDINGS, mesh)

        self._cached_model = model
        return model


# 注册节点
NODE_CLASS_MAPPINGS = {"MyTPUNode": MyTPUNode}
NODE_DISPLAY_NAME_MAPPINGS = {"MyTPUNode": "My TPU Node"}
'''
