"""Compiled and traced programs on disk, so that a second process need not compile or trace again.

    use_compile_cache()
    step = Programs().program({"module": digest}, function, (weights, latents), donate=(1,))

Uses JAX's persistent cache for compiled programs and `jax.export` for traced ones. A cache that
cannot be used is a warning, never an error. Files are written atomically; a broken one is removed.
Versions, devices and our own source are part of every key.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax import export
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding, SingleDeviceSharding

import holdfast
from holdfast.base.config import Config
from holdfast.base.errors import BadInput
from holdfast.base.files import write_whole

LIMIT_BYTES = 256 * 10**6
_FOLDER = "~/.cache/jax_cache"  # where the specification has it
_FOLDER_SETTING = "jax_compilation_cache_dir"
_PACKAGES = ("jax", "jaxlib", "torchax", "torch", "diffusers", "transformers")
# Settings of JAX that change what is traced.
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)
_MAGIC = b"holdfast-xla-1\n"
_SUFFIX = ".program"
_TRACED_AGAIN = "programs are traced in each process"
# Kernels of cuDNN and Pallas have no form that JAX keeps for later versions. We need none: the
# versions are part of the name.
_CHECKS = (export.DisabledSafetyCheck.custom_call("ALL"),)
# What exporting and reading raise for programs that cannot be written down, or not be read.
_FAILURES = (
    *(AssertionError, AttributeError, ImportError, LookupError, RuntimeError),
    *(TypeError, ValueError),
)


class CacheUnusable(UserWarning):
    """A cache folder cannot be written, or a file in it is broken; later runs compile again."""


def use_compile_cache(folder: str | Path | None = None) -> Path | None:
    """Make JAX keep all compiled programs in `folder`. Returns it, or None with a warning.

    Default: the folder that JAX is configured with (JAX_COMPILATION_CACHE_DIR or its settings),
    else ~/.cache/jax_cache. Calling it again is cheap.
    """
    wanted = folder or getattr(jax.config, _FOLDER_SETTING) or _FOLDER
    path = Path(wanted).expanduser().absolute()
    if not _can_write(path, "compiled programs are not kept"):
        if folder is None and not path.is_dir():  # JAX would complain of it at each program
            jax.config.update(_FOLDER_SETTING, None)
        return None
    settings = {
        _FOLDER_SETTING: str(path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    changed = {name: v for name, v in settings.items() if getattr(jax.config, name) != v}
    for name, value in changed.items():
        jax.config.update(name, value)
    if changed:
        compilation_cache.reset_cache()  # it looks at the folder once, at the first program
    return path


@functools.cache  # a folder is warned of once
def _can_write(folder: Path, consequence: str) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK | os.X_OK)
        reason = "no permission to write"
    except OSError as exc:
        usable, reason = False, exc.strerror
    if not usable:
        _warn(f"cannot use the cache {str(folder)!r}: {reason}; {consequence}")
    return usable


def _warn(message: str) -> None:
    warnings.warn(message, CacheUnusable, stacklevel=4)


class Programs:
    """Traced programs in a folder: `xla` in Holdfast's cache folder when none is given.

    `found` and `made` count programs that were read and traced; `failures` says why some could not
    be written down, and are compiled anew in each process.
    """

    def __init__(self, folder: str | Path | None = None, limit_bytes: int = LIMIT_BYTES) -> None:
        chosen = Config.load().cache_dir / "xla" if folder is None else Path(folder).expanduser()
        self.folder, self.limit_bytes = chosen, limit_bytes
        self.found = self.made = 0
        self.failures: list[str] = []
        self._is_usable: bool | None = None
        self._lock = threading.Lock()

    def program(
        self,
        key: Mapping[str, Any] | None,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        donate: tuple[int, ...] = (),
    ) -> Callable[..., Any]:
        """Compile `function` for arguments like these (arrays or ShapeDtypeStruct).

        `key` must be unique among programs whose arguments have the same shapes. If a file for it
        exists, `function` is not called; else it is traced now, and its errors are raised now.
        Without a key nothing is read or written.
        """
        if key is None:
            jax.jit(function).trace(*arguments)
            with self._lock:
                self.made += 1
            return jax.jit(function, donate_argnums=donate)
        path = self.folder / f"{digest(key, arguments)}{_SUFFIX}"
        exported = self._read(path)
        if exported is None:
            exported = self._make(path, function, arguments)
        if exported is None:
            return jax.jit(function, donate_argnums=donate)
        return jax.jit(exported.call, donate_argnums=donate)

    def _read(self, path: Path) -> export.Exported | None:
        try:
            found = path.read_bytes()
        except OSError:
            return None
        try:
            exported = export.deserialize(bytearray(_unseal(found)))
        except _FAILURES as exc:
            _warn(f"removed {str(path)!r}, which is broken ({exc}); the program is traced again")
            _remove(path)
            return None
        with contextlib.suppress(OSError):  # somebody else's folder
            os.utime(path)  # the oldest go first
        with self._lock:
            self.found += 1
        return exported

    def _make(
        self, path: Path, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> export.Exported | None:
        """Trace, export and read back, so that this process runs what later ones will."""
        jitted = jax.jit(function)
        jitted.trace(*arguments)  # its own errors are the caller's; JAX remembers the rest
        with self._lock:
            self.made += 1
        try:
            platform = _device_of(jax.tree.leaves(arguments)).platform
            others = None if platform == jax.devices()[0].platform else (platform,)
            make = export.export(jitted, platforms=others, disabled_checks=_CHECKS)
            written = bytes(make(*arguments).serialize())
            exported = export.deserialize(bytearray(written))
        except _FAILURES as exc:
            with self._lock:
                self.failures.append(f"{type(exc).__name__}: {exc}")
            return None
        # With a checksum: a program is not validated otherwise before it runs.
        self._write(path, _MAGIC + hashlib.sha256(written).digest() + written)
        return exported

    def _write(self, path: Path, content: bytes) -> None:
        with self._lock:
            if self._is_usable is None:
                self._is_usable = _can_write(self.folder, _TRACED_AGAIN)
            if not self._is_usable:
                return
        try:
            write_whole(path, content)
        except OSError as exc:
            with self._lock:
                self._is_usable = False
            _warn(f"cannot write {str(path)!r}: {exc.strerror}; {_TRACED_AGAIN}")
            return
        trim(self.folder, self.limit_bytes)


def trim(folder: Path, limit_bytes: int = LIMIT_BYTES) -> int:
    """Remove the least recently used programs; return the bytes that are left."""
    files = []
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # another process removed it
            status = path.stat()
            files.append((status.st_mtime, path, status.st_size))
    left = sum(size for _, _, size in files)
    for _, path, size in sorted(files):
        if left <= limit_bytes:
            break
        _remove(path)
        left -= size
    return left


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # somebody else's folder; it is said again each time
        path.unlink(missing_ok=True)


def _unseal(found: bytes) -> bytes:
    start = len(_MAGIC) + hashlib.sha256().digest_size
    content = found[start:]
    if found[:start] != _MAGIC + hashlib.sha256(content).digest():
        raise ValueError("its check is wrong")
    return content


def digest(key: Mapping[str, Any], arguments: Any) -> str:
    """The name of a program, the same in every process that would trace it."""
    leaves, tree = jax.tree_util.tree_flatten(arguments)
    device = _device_of(leaves)
    parts = (
        *(_plain(key), str(tree), *map(_describe, leaves)),
        f"{device.platform} {device.device_kind} {jax.device_count()} {jax.process_count()}",
        *(f"{name}={getattr(jax.config, name, None)}" for name in _SETTINGS),
        *_versions(),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _plain(value: Any) -> str:
    """A value as text that is the same in another process."""
    if isinstance(value, Mapping):
        pairs = sorted((_plain(name), _plain(one)) for name, one in value.items())
        return f"{{{', '.join(f'{name}: {one}' for name, one in pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, set | frozenset):
        return f"<{', '.join(sorted(map(_plain, value)))}>"
    text = repr(value)
    if " at 0x" in text:
        raise BadInput(
            f"{text} cannot be part of the name of a program",
            expected="a value that looks the same in another process",
        )
    return text


def _describe(leaf: Any) -> str:
    found = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    weak = getattr(found, "weak_type", False)
    return (
        f"{found.shape} {found.dtype} {weak} {_describe_sharding(getattr(leaf, 'sharding', None))}"
    )


def _describe_sharding(sharding: Any) -> str:
    """A sharding as text, without the identity of the devices."""
    if isinstance(sharding, NamedSharding):
        mesh = sharding.mesh
        return f"{dict(mesh.shape)} {mesh.axis_types} {sharding.spec} {sharding.memory_kind}"
    if sharding is None or isinstance(sharding, SingleDeviceSharding):
        return f"single {getattr(sharding, 'memory_kind', None)}"
    return repr(sharding)


def _device_of(leaves: Any) -> Any:
    """A device that the arguments are on, else JAX's first: a mesh may be of another platform."""
    first = next((leaf for leaf in leaves if isinstance(leaf, jax.Array)), None)
    return jax.devices()[0] if first is None else next(iter(first.sharding.device_set))


@functools.cache
def _versions() -> tuple[str, ...]:
    """Versions of all packages that affect tracing; for Holdfast, a hash of the source."""
    source = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        source.update(file.read_bytes())
    ours = f"holdfast {holdfast.__version__} {source.hexdigest()}"
    return (ours, *(f"{name} {_version(name)}" for name in _PACKAGES))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
