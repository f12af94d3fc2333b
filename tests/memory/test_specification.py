"""The examples of specification 004, with `import genesis` as `import holdfast as genesis`.

Each example is run as it stands in the document. Names that the document leaves to the reader
(`create_model`, `dataloader`, `train_model` …) are given here.
"""

from __future__ import annotations

import re
import textwrap
import types
import warnings

import numpy as np
import pytest

import holdfast
from holdfast import compute, memory
from holdfast.memory.pools.manager import FallbackWarning, MemoryManager

CONFIGURATION = """
import holdfast as genesis

# 配置CUDA内存
genesis.cuda.set_memory_fraction(0.9)  # 使用90%的GPU内存
genesis.cuda.set_cache_size("2GB")     # 设置缓存大小

# 配置CPU内存
genesis.cpu.enable_pinned_memory(True) # 启用钉住内存

# 获取当前内存统计
stats = genesis.memory_stats()
print(f"已分配：{stats.allocated_bytes / 1e9:.2f} GB")
print(f"缓存：{stats.cached_bytes / 1e9:.2f} GB")
"""

CONTROL = """
import holdfast as genesis

# 手动内存管理
def optimize_memory_usage():
    # 清除未使用的缓存
    genesis.empty_cache()

    # 触发垃圾收集
    genesis.memory_manager.collect_garbage()

    # 压缩碎片内存
    genesis.memory_manager.compact()

# 内存监控
def monitor_memory():
    stats = genesis.memory_stats()
    fragmentation = stats.fragmentation_ratio()

    if fragmentation > 0.3:  # 30%碎片阈值
        print("检测到高碎片，正在压缩...")
        genesis.memory_manager.compact()

optimize_memory_usage()
monitor_memory()
"""

PROFILER = """
import holdfast as genesis

# 启用内存分析
genesis.enable_memory_profiling(True)

# 内存操作现在将被跟踪
x = genesis.tensor([1, 2, 3], device="cuda")  # 分配被跟踪
y = x + 1                                     # 临时分配被跟踪
del x                                         # 释放被跟踪

# 获取分析报告
report = genesis.memory_profiler.get_report()
print(report.summary())
"""

TIMELINE = """
import holdfast as genesis

# 记录内存时间线
with genesis.memory_profiler.record():
    # 这里是你的代码
    model = create_model()
    data = load_data()
    output = model(data)

# 分析时间线
timeline = genesis.memory_profiler.get_timeline()
timeline.plot()  # 显示内存使用随时间变化
"""

TIPS = """
import holdfast as genesis

# 好：预分配
buffer = genesis.empty((1000000,), device="cuda")

# 避免：频繁的小分配
for i in range(1000):
    x = genesis.tensor([i], device="cuda")

# 重用缓冲区
result_buffer = genesis.empty((batch_size, num_features))
for batch in dataloader:
    genesis.matmul(batch.input, weights, out=result_buffer)

x = genesis.tensor([1.0, 2.0])
y = genesis.tensor([10.0, 20.0])
# 原地操作节省内存
x.add_(y)      # 而不是 x = x + y
x.mul_(0.5)    # 而不是 x = x * 0.5

# 在需要时清除缓存
if memory_pressure_detected():
    genesis.empty_cache()
"""

LEAKS = """
import holdfast as genesis

# 启用泄漏检测
genesis.enable_memory_debugging(True)

# 运行你的代码
train_model()

# 检查泄漏
leaks = genesis.check_memory_leaks()
if leaks:
    print("检测到内存泄漏：")
    for leak in leaks:
        print(f"  {leak.location}处的{leak.size}字节")
"""

USAGE = '''
import holdfast as genesis

def analyze_memory_usage():
    """全面的内存分析。"""
    stats = genesis.detailed_memory_stats()

    print(f"总分配：{stats.total_allocated / 1e9:.2f} GB")
    print(f"峰值使用：{stats.peak_allocated / 1e9:.2f} GB")
    print(f"碎片率：{stats.fragmentation_ratio:.2%}")
    print(f"缓存命中率：{stats.cache_hit_rate:.2%}")

    # 显示最大的分配
    large_allocs = stats.get_large_allocations(min_size=100*1024*1024)  # 100MB+
    for alloc in large_allocs:
        print(f"大分配：{alloc.location}处的{alloc.size / 1e6:.1f} MB")

analyze_memory_usage()
'''


@pytest.fixture(autouse=True)
def as_before():
    """Settings of the process as they were; on a machine without CUDA the warnings are expected."""
    cuda, cpu = holdfast.cuda, holdfast.cpu
    before = (cuda.memory_fraction, cuda.cache_bytes, cpu.pinned_memory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield
    holdfast.enable_memory_debugging(False)
    holdfast.enable_memory_profiling(False)
    cpu.enable_pinned_memory(False)
    cuda.memory_fraction, cuda.cache_bytes, cpu.pinned_memory = before


def run(example: str, **given: object) -> dict[str, object]:
    names = {"__name__": "example", **given}
    exec(compile(textwrap.dedent(example), "example.py", "exec"), names)
    return names


def test_the_configuration_example_runs_and_settings_are_kept(capsys):
    run(CONFIGURATION)
    assert re.fullmatch(r"已分配：\d+\.\d\d GB\n缓存：\d+\.\d\d GB\n", capsys.readouterr().out)
    assert holdfast.cuda.memory_fraction == 0.9
    assert holdfast.cuda.cache_bytes == 2_000_000_000
    assert holdfast.memory_manager.pool("cpu").allocate(100).pinned


def test_the_manual_control_example_runs_and_empties_the_cache():
    block = holdfast.memory_manager.pool("cpu").allocate("8MB")
    del block
    run(CONTROL)
    # What tensors of other tests hold keeps parts of a segment.
    assert holdfast.memory_manager.pool("cpu").stats().cached_bytes < 1 << 20


def test_the_profiler_example_counts_its_three_operations(capsys):
    names = run(PROFILER)
    assert capsys.readouterr().out.strip()
    report = names["report"]
    sizes = [block.size for block in report.recording.lifetimes()]
    assert sizes.count(24) == 2  # x and y, three integers each
    ended = [block.end_ns is not None for block in report.recording.lifetimes()]
    assert ended.count(True) >= 1  # x


def test_the_timeline_example_shows_a_chart(capsys):
    pool = memory.MemoryPool("cpu")
    names = run(
        TIMELINE,
        create_model=lambda: lambda data: pool.allocate(len(data)),
        load_data=lambda: pool.allocate("3MB"),
    )
    assert "MB" in capsys.readouterr().out
    assert len(names["timeline"].recording) >= 2


def test_the_performance_tips_run_and_compute():
    inputs = np.ones((4, 3), dtype="float32")
    batches = [types.SimpleNamespace(input=inputs * n) for n in (1, 2)]
    names = run(
        TIPS,
        batch_size=4,
        num_features=2,
        weights=np.full((3, 2), 2.0, dtype="float32"),
        dataloader=batches,
        memory_pressure_detected=lambda: True,
    )
    assert names["result_buffer"].tolist() == [[12.0, 12.0]] * 4
    assert names["x"].tolist() == [5.5, 11.0]


def test_the_leak_example_names_the_line_of_the_leak(capsys):
    kept = []

    def train_model() -> None:
        kept.append(holdfast.tensor([1.0] * 100))  # the leak

    run(LEAKS, train_model=train_model)
    line = train_model.__code__.co_firstlineno + 1
    out = capsys.readouterr().out
    assert "检测到内存泄漏：" in out
    assert f"{__file__}:{line}" in out
    assert "处的400字节" in out


def test_the_leak_example_prints_nothing_where_nothing_leaks(capsys):
    run(LEAKS, train_model=lambda: holdfast.tensor([1.0] * 100).tolist())
    assert capsys.readouterr().out == ""


def test_the_analysis_example_lists_a_large_block(capsys):
    kept = memory.MemoryPool("cpu").allocate(100 * 1024 * 1024)
    run(USAGE)
    out = capsys.readouterr().out
    assert re.search(r"大分配：.*处的104\.9 MB", out)
    assert re.search(r"碎片率：\d+\.\d\d%", out)
    del kept


def test_pools_have_the_attributes_of_the_document():
    pool = memory.MemoryPool("cpu")
    assert pool.device_type == "cpu"
    assert (pool.free_blocks, pool.allocated_blocks) == ({}, {})
    assert (pool.total_allocated, pool.peak_allocated) == (0, 0)
    block = pool.allocate(1000)
    assert list(pool.allocated_blocks) == [block.ptr]
    pool.deallocate(block.ptr)
    assert pool.allocated_blocks == {}
    assert pool.peak_allocated == 1000
    assert sum(size * len(at) for size, at in pool.free_blocks.items()) == 1 << 20


def test_statistics_have_the_fields_of_the_document():
    stats = memory.MemoryStats()
    stats.update_allocation(100)
    assert (stats.allocated_bytes, stats.active_bytes, stats.peak_allocated) == (100, 100, 100)
    assert (stats.num_allocs, stats.num_frees, stats.inactive_bytes) == (1, 0, 0)
    stats.reserved_bytes = 400
    assert stats.fragmentation_ratio() == 0.75
    assert memory.MemoryStats().fragmentation_ratio() == 0.0


def test_the_cpu_pool_tells_pinned_blocks_from_others():
    pool = memory.CPUMemoryPool()
    pinned, plain = pool.allocate_pinned(1000), pool.allocate(1000)
    assert pool.is_pinned(pinned.ptr)
    assert not pool.is_pinned(plain.ptr)
    assert pool.pinned_blocks == {pinned.ptr}


def test_a_device_that_is_not_here_is_the_cpu_and_that_is_said_once():
    manager = MemoryManager()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        places = [manager.place("cuda"), manager.place("cuda")]
    if holdfast.cuda.is_available():
        assert places == ["cuda:0"] * 2
        assert not said
    else:
        assert places == ["cpu", "cpu"]
        assert [str(w.message) for w in said] == [
            "there is no CUDA device that torch can use: 'cuda' is the CPU in this process"
        ]
        assert said[0].filename == __file__


def test_every_package_level_name_of_the_document_is_there():
    for name in (
        *("cuda", "cpu", "memory_stats", "detailed_memory_stats", "empty_cache"),
        *("memory_manager", "memory_profiler", "enable_memory_profiling"),
        *("enable_memory_debugging", "check_memory_leaks"),
    ):
        assert getattr(holdfast, name) is getattr(memory, name)
        assert name in dir(holdfast)
    for name in ("tensor", "empty", "matmul"):
        assert getattr(holdfast, name) is getattr(compute, name)
        assert name in dir(holdfast)
