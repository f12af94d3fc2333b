"""The private folder of sockets where the processes of one user find each other.

The folder is accessible to this user alone, or it is not used. A socket gets its name only once it
listens. Light to import, as every process that uses Holdfast does.

Without Unix sockets, the file holds a port of the loopback interface and a secret that a client
must send first.
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

LONGEST = 100  # bytes of a socket path that every system accepts
DIGITS = 7  # of a pid
WAITING = 8  # backlog


def has_unix_sockets() -> bool:
    """Whether the system has Unix sockets."""
    return hasattr(socket, "AF_UNIX")


def suffix() -> str:
    """The suffix of a socket file."""
    return ".sock" if has_unix_sockets() else ".port"


def folders(config: Config | None = None, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Folders for socket files: only the configured one, if there is one.

    Without one, or if its path is too long: XDG_RUNTIME_DIR, then a temporary folder of the user.
    """
    named = (config or Config.load()).runtime_dir
    if named is not None and _fits(named.absolute()):
        return [named.absolute()]
    systems = environ.get("XDG_RUNTIME_DIR")
    found = [Path(systems) / "holdfast"] if systems else []
    import tempfile  # rarely needed

    with contextlib.suppress(OSError):  # no folder for temporary files
        found.append(Path(tempfile.gettempdir()) / f"holdfast-{_user()}")
    return list(dict.fromkeys(found))


def _fits(folder: Path) -> bool:
    """Whether socket paths in this folder are short enough for every pid."""
    return (
        not has_unix_sockets() or len(os.fsencode(folder / f"{'9' * DIGITS}{suffix()}")) <= LONGEST
    )


def _user() -> str:
    if hasattr(os, "getuid"):
        return str(os.getuid())
    import getpass

    return getpass.getuser()


def refuse_shared(folder: Path) -> None:
    """Raise Unsupported for a folder that other users can access, OSError if it does not exist.

    The superuser may use anybody's folder.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise Unsupported(
            f"cannot use the socket folder {str(folder)!r}: it is not a folder",
            expected="a folder of this user's",
            hint="another HOLDFAST_RUNTIME_DIR",
        )
    if not hasattr(os, "getuid"):
        return  # Windows: user folders are private
    mine = found.st_uid == os.getuid() or os.getuid() == 0
    if not mine or stat.S_IMODE(found.st_mode) & 0o077:
        whose = "open to others" if mine else "somebody else's"
        raise Unsupported(
            f"cannot use the socket folder {str(folder)!r}: it is {whose}",
            expected="a folder that this user alone can read and write",
            hint=f"chmod 700 {folder}, or another HOLDFAST_RUNTIME_DIR",
        )


# ---- the offering side


class Open:
    """A listening socket and its file.

    `secret` must be sent by clients; None where the file permissions suffice.
    """

    __slots__ = ("file", "listener", "secret")

    # Not a dataclass: creating one takes longer than opening the socket.
    def __init__(self, listener: socket.socket, file: Path, secret: str | None) -> None:
        self.listener, self.file, self.secret = listener, file, secret

    def close(self, *, remove: bool = True) -> None:
        """Stop listening; `remove` also deletes the file."""
        if remove:
            with contextlib.suppress(OSError):
                self.file.unlink()
        with contextlib.suppress(OSError):
            self.listener.close()


def open_here(config: Config | None = None) -> Open | None:
    """Open a socket for this process in the first usable folder, or return None."""
    for folder in folders(config):
        file = folder / f"{os.getpid()}{suffix()}"
        if not _fits(folder):
            continue
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_shared(folder)
            for pid, other in _files(folder):
                if not exists(pid):
                    is_alive(pid, other)  # removes the file
            return _open(file)
        except (OSError, Unsupported):
            continue
    return None


def _open(file: Path) -> Open:
    is_unix = has_unix_sockets()
    # Under a temporary name until it listens, else it would look like a dead process.
    draft = file.with_name(f".{os.getpid()}")
    draft.unlink(missing_ok=True)
    secret = None if is_unix else os.urandom(16).hex()
    listener = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind(str(draft) if is_unix else ("127.0.0.1", 0))
        if is_unix:
            draft.chmod(0o600)
        listener.listen(WAITING)
        if not is_unix:
            draft.touch(mode=0o600, exist_ok=False)
            content = {"port": listener.getsockname()[1], "secret": secret}
            draft.write_text(json.dumps(content), encoding="ascii")
        draft.replace(file)
    except BaseException:
        listener.close()
        draft.unlink(missing_ok=True)
        raise
    return Open(listener, file, secret)


def is_allowed(connection: socket.socket) -> bool:
    """Whether the peer is this user or the superuser, as far as the system tells."""
    if not hasattr(socket, "SO_PEERCRED") or connection.family != socket.AF_UNIX:
        return True  # the folder's permissions suffice
    import struct

    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, user, _ = struct.unpack("3i", credentials)
    return user in (os.getuid(), 0)


# ---- the asking side


def socket_files(config: Config | None = None) -> Iterator[tuple[int, Path]]:
    """(pid, file) of processes, alive or not.

    Raises Unsupported if the first folder is accessible to others; further ones are skipped then.
    """
    for number, folder in enumerate(folders(config)):
        try:
            refuse_shared(folder)
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
    """Connect; returns the secret to send first. Raises OSError, or ValueError for a bad file."""
    if has_unix_sockets():
        connection, secret = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), None
        address: str | tuple[str, int] = str(file)
    else:
        content = json.loads(file.read_text(encoding="ascii"))
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        secret, address = str(content["secret"]), ("127.0.0.1", int(content["port"]))
    end_s = time.monotonic() + timeout_s
    try:
        connection.settimeout(timeout_s)
        while not _try_connect(connection, address, end_s):
            time.sleep(0.005)
    except BaseException:
        connection.close()
        raise
    return connection, secret


def _try_connect(connection: socket.socket, address: str | tuple[str, int], end_s: float) -> bool:
    """Connect; False if the backlog is full, which Unix sockets report at once."""
    try:
        connection.connect(address)
        return True
    except BlockingIOError:
        if time.monotonic() > end_s:
            raise
        return False


def is_alive(pid: int, file: Path) -> bool:
    """Whether the process of a file listens; removes the file if not.

    The pid alone is not enough: a container may share the folder but not the pids.
    """
    try:
        connect(file, timeout_s=1.0)[0].close()
        return True
    except (BlockingIOError, TimeoutError):
        return True  # alive but busy
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with contextlib.suppress(OSError):
        file.unlink()
    return False


def exists(pid: int) -> bool:
    """Whether there is such a process, of any user."""
    if os.name != "posix":
        return True  # connecting will tell
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # of another user
    return True
