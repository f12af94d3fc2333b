"""The guest's disk: this machine's Python, the code under test and a script, as a cpio archive.

Covers: what goes in, what is kept between builds, the guest's first program.
Leaves to others: the machine that boots it (machine).
Promise: the script's output ends with a line that says how the script ended, also when /init fails.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "guest"
STDLIB = Path(sysconfig.get_path("stdlib"))

# In the guest. The interpreter and its libraries keep the paths they have here, so that it finds
# its prefix.
GUEST_PATH = "/guest/path"
GUEST_SCRIPT = "/guest/script.py"
RESULT_PORT = "/dev/ttyS1"


class Archive:
    """A cpio archive (newc) being written.

    A path is taken once, by whoever comes first; folders come with what is in them.
    """

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._taken = {"/"}

    def file(self, path: str, data: bytes, *, mode: int = 0o644, mtime: int = 0) -> None:
        self._entry(path, stat.S_IFREG | mode, data, mtime)

    def copy(self, source: Path, path: str) -> None:
        """Add a file from here, links followed. It keeps its time, which bytecode goes by."""
        about = source.stat()
        mode, mtime = stat.S_IMODE(about.st_mode), int(about.st_mtime)
        self.file(path, source.read_bytes(), mode=mode, mtime=mtime)

    def link(self, path: str, leads_to: str) -> None:
        self._entry(path, stat.S_IFLNK | 0o777, leads_to.encode(), 0)

    def folder(self, path: str) -> None:
        self._entry(path, stat.S_IFDIR | 0o755, b"", 0)

    def close(self) -> None:
        """End the archive at a multiple of 512, so that another may follow it in the same file."""
        self._write("TRAILER!!!", 0, b"", 0)
        self._out.write(bytes(-self._out.tell() % 512))

    def _entry(self, path: str, mode: int, data: bytes, mtime: int) -> None:
        if path in self._taken:
            return
        self._taken.add(path)
        # The kernel makes no folder by itself.
        self.folder(str(PurePosixPath(path).parent))
        self._write(path.lstrip("/"), mode, data, mtime)

    def _write(self, name: str, mode: int, data: bytes, mtime: int) -> None:
        raw = os.fsencode(name) + b"\0"
        # ino mode uid gid nlink mtime size, device and special device (major, minor), length of
        # the name, checksum. With one link to a file nobody looks at ino.
        fields = (0, mode, 0, 0, 1, mtime, len(data), 0, 0, 0, 0, len(raw), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + raw
        self._out.write(head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4))


def build_initramfs(
    target: Path, *, packages: Sequence[Path], script: str | Path, with_numpy: bool = False
) -> None:
    """Write an initramfs that runs `script`, with `packages` there to be imported.

    `script` is source text, or the Path of a file with it; each package is a folder or a module
    file. The parts that seldom change are kept under .cache/guest: the kernel reads archives laid
    end to end. Not compressed, for it is the emulated CPU that would have to unpack it.
    """
    parts = [_kept("python", [interpreter(), STDLIB], _add_python)]
    if with_numpy:
        parts.append(_kept("numpy", [_numpy()], _add_numpy))
    with target.open("wb") as out:
        for part in parts:
            with part.open("rb") as kept:
                shutil.copyfileobj(kept, out, 1 << 20)
        archive = Archive(out)
        archive.file("/init", _init_source().encode(), mode=0o755)
        text = script if isinstance(script, str) else script.read_text(encoding="utf-8")
        archive.file(GUEST_SCRIPT, text.encode())
        archive.folder(GUEST_PATH)
        for package in packages:
            _add_tree(archive, package.resolve(), f"{GUEST_PATH}/{package.resolve().name}")
        archive.close()


def interpreter() -> Path:
    """The real interpreter, also from inside a virtual environment."""
    named = Path(sys.base_prefix, "bin", f"python{sysconfig.get_python_version()}")
    return named.resolve() if named.exists() else Path(sys.executable).resolve()


def _numpy() -> Path:
    # Found, not imported: that takes a while, and here it is only files.
    spec = find_spec("numpy")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("numpy is to be put into the guest, and is not installed here")
    return Path(spec.origin).parent


def _kept(part: str, sources: Iterable[Path], fill: Callable[[Archive], None]) -> Path:
    """The archive `fill` writes, from the cache while neither `sources` nor this file changed."""
    seen = [(str(source), source.stat().st_mtime_ns) for source in sources]
    key = hashlib.sha256(Path(__file__).read_bytes() + repr(seen).encode()).hexdigest()[:16]
    name = f"{part}-{platform.python_version()}"
    kept = CACHE / f"{name}-{key}.cpio"
    if kept.exists():
        return kept
    CACHE.mkdir(parents=True, exist_ok=True)
    # Nobody, also no other process, sees it half done.
    unfinished = kept.with_suffix(f".{os.getpid()}")
    with unfinished.open("wb") as out:
        archive = Archive(out)
        fill(archive)
        archive.close()
    for stale in CACHE.glob(f"{name}-*.cpio"):
        stale.unlink(missing_ok=True)
    return unfinished.replace(kept)


# Tests, windows and menus, installers, and other people's packages.
_STDLIB_LEFT_OUT = re.compile(
    r"tests?|idlelib|turtledemo|_?tkinter.*|ensurepip|lib2to3|pydoc_data|(site|dist)-packages"
    r"|config-.*|_(ctypes_)?test.*|_?xx.*"
)


def _add_python(archive: Archive) -> None:
    python = interpreter()
    archive.copy(python, str(python))
    _add_libraries(archive, libraries(python) or {})
    _add_tree(archive, STDLIB, str(STDLIB), left_out=_STDLIB_LEFT_OUT)


def _add_numpy(archive: Archive) -> None:
    _add_tree(archive, _numpy(), f"{GUEST_PATH}/numpy", left_out=re.compile("tests|include"))
    # What a wheel brings along, beside the package; where numpy came from Debian there is none.
    _add_tree(archive, _numpy().with_name("numpy.libs"), f"{GUEST_PATH}/numpy.libs")


def _add_tree(
    archive: Archive, source: Path, path: str, *, left_out: re.Pattern[str] | None = None
) -> None:
    """Add a folder or a file. A library that could not be loaded here either is passed over."""
    for file in [source] if source.is_file() else _wanted(source, left_out):
        if ".so" in file.suffixes:
            needed = libraries(file)
            if needed is None:
                continue
            _add_libraries(archive, needed)
        archive.copy(file, str(PurePosixPath(path, file.relative_to(source))))


def _wanted(source: Path, left_out: re.Pattern[str] | None) -> Iterator[Path]:
    """The files under `source`, of bytecode only what this interpreter would read."""
    bytecode = f".{sys.implementation.cache_tag}.pyc"
    for name, folders, files in os.walk(source):
        folder = Path(name)
        if left_out:
            folders[:] = [name for name in folders if not left_out.fullmatch(name)]
            files = [name for name in files if not left_out.fullmatch(name)]
        if folder.name == "__pycache__":
            files = [name for name in files if name.endswith(bytecode)]
        # A link may lead to where nothing is.
        yield from (folder / name for name in files if (folder / name).is_file())


def libraries(binary: Path) -> dict[str, str] | None:
    """The shared libraries `binary` is loaded with, name to path; None when one is not here."""
    told = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False)
    if "not found" in told.stdout:
        return None
    lines = re.findall(r"^\s+(?:(\S+) => )?(/\S+) \(0x", told.stdout, re.MULTILINE)
    return {name or PurePosixPath(path).name: path for name, path in lines}


def _add_libraries(archive: Archive, needed: dict[str, str]) -> None:
    for name, path in needed.items():
        # A wheel's own are looked for, and put, beside its package.
        if ".libs/" in path:
            continue
        archive.copy(Path(path), path)
        # What is found here by LD_LIBRARY_PATH or ld.so.cache is found there in a folder that is
        # always searched. Most libraries are in that folder to begin with; the path is taken then.
        archive.link(f"/lib/x86_64-linux-gnu/{name}", path)


# Runs as process 1. The output goes out as it comes, so that a script that hangs has left a trace,
# and is counted, so that the other side knows it has all of it. At the end, whatever happened, the
# machine goes off. (posix_spawn, because importing subprocess takes a while in here.)
_INIT = """#!{python} -IBS
import os, sys, time, traceback

def mount(libc, kind, where):
    os.makedirs(where, exist_ok=True)
    if libc.mount(kind.encode(), where.encode(), kind.encode(), 0, None):
        raise OSError(ctypes.get_errno(), f"cannot mount {{kind}} on {{where}}")

def send(port, data):
    while data:
        data = data[os.write(port, data):]

def run_script(port):
    ours, theirs = os.pipe()
    environment = {{"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8",
                   "PYTHONPATH": {path!r}, "PYTHONDONTWRITEBYTECODE": "1"}}
    wiring = [(os.POSIX_SPAWN_DUP2, theirs, 1), (os.POSIX_SPAWN_DUP2, theirs, 2)]
    command = [{python!r}, {script!r}]
    child = os.posix_spawn(command[0], command, environment, file_actions=wiring)
    os.close(theirs)
    count = 0
    while chunk := os.read(ours, 65536):
        send(port, chunk)
        count += len(chunk)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), count

try:
    import ctypes, tty
    libc = ctypes.CDLL(None, use_errno=True)
    mount(libc, "proc", "/proc")
    mount(libc, "sysfs", "/sys")
    mount(libc, "devtmpfs", "/dev")
    mount(libc, "tmpfs", "/tmp")
    port = os.open({port!r}, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(port)
    rc, count = run_script(port)
    send(port, f"\\nGUEST-RESULT rc={{rc}} bytes={{count}}\\n".encode())
    tty.tcdrain(port)
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    time.sleep(1)  # The console is slow, and what it has not sent by then is lost.
finally:
    # RB_AUTOBOOT, which QEMU takes as the end (-no-reboot). Should even this fail, process 1 ends,
    # the kernel panics over it, and panic=-1 comes to the same.
    ctypes.CDLL(None).reboot(0x01234567)
"""


def _init_source() -> str:
    python = str(interpreter())
    return _INIT.format(python=python, path=GUEST_PATH, script=GUEST_SCRIPT, port=RESULT_PORT)
