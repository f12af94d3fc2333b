"""A terminal that a program runs in, and what is on its screen: as much as Textual needs."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Any

PATIENCE_S = 240.0  # for one thing to happen; the machine may be busy

_PART = re.compile(
    r"\x1b\[(?P<params>[0-9;?<>=$]*)(?P<final>[@-~])"
    r"|\x1b[\]P^_].*?(?:\x07|\x1b\\)|\x1b[()].|\x1b[=>78cM]"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f])|(?P<text>[^\x00-\x1f]+)",
    re.DOTALL,
)


class Screen:
    """Characters by place. Colours are not kept."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.modes: set[str] = set()  # those that are on, such as "?1049": the other screen
        self._rows = [[" "] * width for _ in range(height)]
        self._x = self._y = 0
        self._rest = ""

    def feed(self, text: str) -> None:
        """What a program wrote."""
        text, at = self._rest + text, 0
        while at < len(text):
            found = _PART.match(text, at)
            if found is None:  # half of a sequence
                break
            self._take(found)
            at = found.end()
        self._rest = text[at:]

    def _take(self, part: re.Match[str]) -> None:
        if part["text"]:
            for character in part["text"]:
                self._put(character)
        elif part["control"] == "\r":
            self._x = 0
        elif part["control"] == "\n":
            self._y = min(self._y + 1, self.height - 1)
        elif part["final"]:
            self._move(part["params"], part["final"])

    def _put(self, character: str) -> None:
        if self._x < self.width and self._y < self.height:
            self._rows[self._y][self._x] = character
        self._x += 1

    def _move(self, params: str, final: str) -> None:
        if final in "hl":
            change = self.modes.add if final == "h" else self.modes.discard
            for mode in params.lstrip("?").split(";"):
                change(f"?{mode}")
            return
        if not re.fullmatch(r"[\d;]*", params):
            return
        numbers = [int(number or 0) for number in params.split(";")]
        first = max(numbers[0], 1)
        if final in "Hf":
            self._y, self._x = first - 1, max([*numbers, 1][1], 1) - 1
        elif final == "C":
            self._x += first
        elif final == "J" and numbers[0] == 2:
            self._rows = [[" "] * self.width for _ in range(self.height)]

    @property
    def text(self) -> str:
        """The lines."""
        return "\n".join("".join(row).rstrip() for row in self._rows)


class Terminal(contextlib.AbstractContextManager["Terminal"]):
    """A program in a terminal of its own."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        size: tuple[int, int] = (120, 40),
        environment: Mapping[str, str] | None = None,
        folder: Any = None,
    ) -> None:
        self.screen = Screen(*size)
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._end, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.settings = termios.tcgetattr(other)
        self._other = other  # kept open, to ask for its settings once the program is over
        self.program = subprocess.Popen(
            command,
            stdin=other,
            stdout=other,
            stderr=other,
            env={**os.environ, "TERM": "xterm-256color", **(environment or {})},
            cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def read(self, seconds: float) -> None:
        """Take in what is written during so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._take_in(left)

    def _take_in(self, seconds: float) -> None:
        """The next few characters: a message may be gone again after a few thousand."""
        ready, _, _ = select.select([self._end], [], [], seconds)
        if ready:
            self.screen.feed(self._decode(os.read(self._end, 1 << 10)))

    def wait_for(self, text: str) -> str:
        """Until the text is on the screen; fails with the screen where it does not come."""
        end = time.monotonic() + PATIENCE_S
        while text not in self.screen.text:
            if time.monotonic() > end:
                raise AssertionError(f"{text!r} is not on the screen:\n{self.screen.text}")
            self._take_in(0.05)
        return self.screen.text

    def wait_until_gone(self, text: str) -> None:
        """Until the text is on the screen no more."""
        end = time.monotonic() + PATIENCE_S
        while text in self.screen.text:
            assert time.monotonic() < end, f"{text!r} is still there:\n{self.screen.text}"
            self.read(0.05)

    def press(self, keys: str) -> None:
        """As somebody types."""
        os.write(self._end, keys.encode())

    def ended(self) -> int:
        """The status, once it is over."""
        end = time.monotonic() + PATIENCE_S
        while self.program.poll() is None:
            assert time.monotonic() < end, f"it does not end:\n{self.screen.text}"
            self.read(0.05)
        self.read(0.1)
        return self.program.returncode

    @property
    def restored(self) -> bool:
        """Whether the terminal is as it was: lines, echo, the screen, the cursor, the mouse."""
        taken = {"?1049", "?1000", "?1003", "?1006", "?2004"} & self.screen.modes
        same = termios.tcgetattr(self._other) == self.settings
        return same and not taken and "?25" in self.screen.modes

    def __exit__(self, *_: object) -> None:
        if self.program.poll() is None:
            self.program.kill()
            self.program.wait()
        os.close(self._other)
        os.close(self._end)
