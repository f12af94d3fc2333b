"""Where the processes of one user find each other: a private folder with a socket for each.

Covers: the folder and who may use it, the file of a process, listening and connecting, files of
processes that are gone.
Leaves to others: what is said (wire), answering (offering), asking (attaching).
Promise: the folder belongs to this user alone, or is not used. A socket is there under its name
when it listens, not before. Light to import: every process that uses Holdfast does.

Where the system has no sockets in files, the file holds a port of the loopback interface and a
secret that whoever connects has to say first.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.base.config import Config
from holdfast.base.errors import Unsupported

LONGEST = 100  # bytes of a path that every system takes for a socket
DIGITS = 7  # of a process's number
WAITING = 8  # readers that may wait to be let in


def in_files() -> bool:
    """Whether sockets can be files here."""
    return hasattr(socket, "AF_UNIX")


def suffix() -> str:
    """How the file of a process ends."""
    return ".sock" if in_files() else ".port"


def folders(config: Config | None = None, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where the file of a process may be: the folder of the settings, and there alone.

    Without one, or where its path is too long: the system's for this, then one of the user's own.
    """
    named = (config or Config.load()).runtime_dir
    if named is not None and _fits(named.absolute()):
        return [named.absolute()]
    systems = environ.get("XDG_RUNTIME_DIR")
    found = [Path(systems) / "holdfast"] if systems else []
    with contextlib.suppress(OSError):  # a system without a folder for temporary files
        found.append(_temporary() / f"holdfast-{_user()}")
    return list(dict.fromkeys(found))


def _fits(folder: Path) -> bool:
    """Whether the path of a socket in a folder is short enough, whoever's it is."""
    return not in_files() or len(os.fsencode(folder / f"{'9' * DIGITS}{suffix()}")) <= LONGEST


def _temporary() -> Path:
    import tempfile  # for those who need it

    return Path(tempfile.gettempdir())


def _user() -> str:
    if hasattr(os, "getuid"):
        return str(os.getuid())
    import getpass

    return getpass.getuser()


def refuse_others(folder: Path) -> None:
    """Raise Unsupported for a folder that somebody else could read or write, OSError for none.

    The superuser may look into the folder of anybody.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise Unsupported(
            f"cannot meet processes in {str(folder)!r}: it is no folder",
            expected="a folder of this user's",
            hint="another HOLDFAST_RUNTIME_DIR",
        )
    if not hasattr(os, "getuid"):
        return  # the folders of a user are his own there
    mine = found.st_uid == os.getuid() or os.getuid() == 0
    if not mine or stat.S_IMODE(found.st_mode) & 0o077:
        whose = "open to others" if mine else "somebody else's"
        raise Unsupported(
            f"cannot meet processes in {str(folder)!r}: it is {whose}",
            expected="a folder that this user alone can read and write",
            hint=f"chmod 700 {folder}, or another HOLDFAST_RUNTIME_DIR",
        )


# ---- the side of the process that is looked at


class Open:
    """A socket that listens, and the file by which it is found.

    `secret` is what readers have to say; None where the file itself lets nobody else in.
    """

    __slots__ = ("file", "listener", "secret")

    # No dataclass: to make one takes longer than to open the socket.
    def __init__(self, listener: socket.socket, file: Path, secret: str | None) -> None:
        self.listener, self.file, self.secret = listener, file, secret

    def close(self, *, remove: bool = True) -> None:
        """Listen no more; the file stays where it is another process's."""
        if remove:
            with contextlib.suppress(OSError):
                self.file.unlink()
        with contextlib.suppress(OSError):
            self.listener.close()


def open_here(config: Config | None = None) -> Open | None:
    """A socket for this process in the first folder that will do; None where none will."""
    for folder in folders(config):
        file = folder / f"{os.getpid()}{suffix()}"
        if not _fits(folder):
            continue
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_others(folder)
            _tidy(folder)
            return _in_a_file(file) if in_files() else _on_a_port(file)
        except (OSError, Unsupported):
            continue
    return None


def _tidy(folder: Path) -> None:
    """Remove files of processes that were killed, or left as children of a fork do."""
    for pid, file in _files(folder):
        if not _exists(pid):
            is_alive(pid, file)


def _in_a_file(file: Path) -> Open:
    # Under another name until it listens: one that does not would be taken for a dead process's.
    draft = file.with_name(f".{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(draft))
        draft.chmod(0o600)
        listener.listen(WAITING)
        draft.replace(file)
    except BaseException:
        listener.close()
        draft.unlink(missing_ok=True)
        raise
    return Open(listener, file, None)


def _on_a_port(file: Path) -> Open:
    import secrets  # for those who need it

    secret = secrets.token_hex(16)
    draft = file.with_name(f".{os.getpid()}")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind(("127.0.0.1", 0))
        listener.listen(WAITING)
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600, exist_ok=False)
        told = {"port": listener.getsockname()[1], "secret": secret}
        draft.write_text(json.dumps(told), encoding="ascii")
        draft.replace(file)
    except BaseException:
        listener.close()
        draft.unlink(missing_ok=True)
        raise
    return Open(listener, file, secret)


def may_look(connection: socket.socket) -> bool:
    """Whether the other end is this user's, or the superuser's, as far as the system tells."""
    if not hasattr(socket, "SO_PEERCRED") or connection.family != socket.AF_UNIX:
        return True  # the folder lets nobody else in
    import struct

    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, user, _ = struct.unpack("3i", told)
    return user in (os.getuid(), 0)


# ---- the side of those who look


def meetings(config: Config | None = None) -> Iterator[tuple[int, Path]]:
    """The files of processes, alive or not: (pid, file).

    Raises Unsupported for a folder of somebody else's. As a second choice that is left out: no
    process is there, and whoever made it should not keep this user from looking.
    """
    for number, folder in enumerate(folders(config)):
        try:
            refuse_others(folder)
            yield from _files(folder)
        except OSError:
            continue
        except Unsupported:
            if number == 0:
                raise


def _files(folder: Path) -> list[tuple[int, Path]]:
    return [
        (int(file.stem), file)
        for file in list(folder.iterdir())
        if file.stem.isdigit() and file.suffix == suffix()
    ]


def connect(file: Path, timeout_s: float) -> tuple[socket.socket, str | None]:
    """A connection, and the secret to say first. Raises OSError, and ValueError for a bad file."""
    if in_files():
        connection, secret = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), None
        address: str | tuple[str, int] = str(file)
    else:
        told = json.loads(file.read_text(encoding="ascii"))
        connection, secret = socket.socket(socket.AF_INET, socket.SOCK_STREAM), str(told["secret"])
        address = ("127.0.0.1", int(told["port"]))
    end_s = time.monotonic() + timeout_s
    try:
        connection.settimeout(timeout_s)
        while not _let_in(connection, address, end_s):
            time.sleep(0.005)
    except BaseException:
        connection.close()
        raise
    return connection, secret


def _let_in(connection: socket.socket, address: str | tuple[str, int], end_s: float) -> bool:
    """Whether it is; too many may be waiting, which a socket in a file says at once."""
    try:
        connection.connect(address)
        return True
    except BlockingIOError:
        if time.monotonic() > end_s:
            raise
        return False


def is_alive(pid: int, file: Path) -> bool:
    """Whether the process of a file listens; the file of one that does not is removed.

    Its number alone does not tell: a container may share the folder, and count by itself.
    """
    try:
        connect(file, timeout_s=1.0)[0].close()
        return True
    except (BlockingIOError, TimeoutError):
        return True  # it is there, and very busy
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with contextlib.suppress(OSError):
        file.unlink()
    return False


def _exists(pid: int) -> bool:
    if os.name != "posix":
        return True  # connecting tells
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True
