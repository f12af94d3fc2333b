"""`holdfast serve`: what it prints, refuses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
import webbrowser
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from holdfast.cli.main import main
from holdfast.dashboard.web.server import Server


@pytest.fixture
def ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes as soon as it serves."""

    def interrupted(server: Server) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "wait", interrupted)
    monkeypatch.setattr("signal.signal", lambda *_: None)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        yield other.getsockname()[1]


def test_it_prints_the_address_and_ends_by_ctrl_c(ended_at_once: None, capsys) -> None:
    assert main(["serve", "--port", "0"]) == 0
    printed = capsys.readouterr()
    assert re.fullmatch(
        r"Holdfast is shown at http://127\.0\.0\.1:[0-9]+/\nCtrl-C ends it\n", printed.out
    )
    assert printed.err == "\nholdfast: stopped\n"


def test_on_other_addresses_the_token_is_part_of_the_address(ended_at_once: None, capsys) -> None:
    assert main(["serve", "--port", "0", "--host", "0.0.0.0"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert re.fullmatch(
        r"Holdfast is shown at http://[^/:]+:[0-9]+/\?token=[A-Za-z0-9_-]{32}", first
    )


def test_json_is_one_line_with_address_token_and_process(ended_at_once: None, capsys) -> None:
    assert main(["serve", "--port", "0", "--token", "auto", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    printed = json.loads(line)
    assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/", printed["url"])
    assert len(printed["token"]) == 32
    assert printed["pid"] == os.getpid()


@pytest.mark.parametrize("found", [True, False])
def test_it_opens_a_browser_where_there_is_one(
    ended_at_once: None, capsys, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    opened: list[str] = []

    def open_it(url: str) -> bool:
        opened.append(url)
        return found

    monkeypatch.setattr(webbrowser, "open", open_it)
    assert main(["serve", "--port", "0", "--open", "--token", "a-token-of-mine"]) == 0
    assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/\?token=a-token-of-mine", opened[0])
    printed = "holdfast: no browser was found; open the address yourself"
    assert (printed in capsys.readouterr().err) is not found


def test_a_port_in_use_is_refused_with_another_one(taken: int, capsys) -> None:
    assert main(["serve", "--port", str(taken)]) == 2
    first, expected, hint = capsys.readouterr().err.splitlines()
    assert first == (
        f"holdfast: error: cannot listen on 127.0.0.1:{taken}: another program listens there"
    )
    assert expected == "  expected: a port that is free"
    free = re.fullmatch(r"  try: --port ([0-9]+), or --port 0 for any that is free", hint)
    assert free is not None
    assert int(free[1]) != taken
    socket.create_server(("127.0.0.1", int(free[1]))).close()


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (
            ["--port", "65536"],
            "cannot use --port '65536'\n  expected: an integer from 0 to 65535\n",
        ),
        (["--port", "x"], "cannot use --port 'x'\n  expected: an integer from 0 to 65535\n"),
        (
            ["--interval", "nan"],
            "cannot use --interval 'nan'\n  expected: seconds from 0.05 to 60\n"
            "  try: --interval 0.5\n",
        ),
        (
            ["--pid", "0"],
            "cannot use --pid '0'\n  expected: an integer from 1 to 2147483647\n",
        ),
        (
            ["--host", ""],
            "cannot listen on '': no such address\n"
            "  expected: an address or a name of this machine\n  try: --host 127.0.0.1\n",
        ),
        (
            ["--host", "no.such.host.invalid"],
            "cannot listen on 'no.such.host.invalid': no such address\n"
            "  expected: an address or a name of this machine\n  try: --host 127.0.0.1\n",
        ),
        (
            ["--host", "192.0.2.1", "--port", "0"],
            "cannot listen on 192.0.2.1:0: Cannot assign requested address\n"
            "  expected: an address of this machine\n  try: --host 127.0.0.1\n",
        ),
        (
            ["--token", "short"],
            "cannot use a token of 5 characters such as this one\n"
            "  expected: 8 to 128 letters, digits and . _ ~ -\n  try: --token auto\n",
        ),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: list[str], printed: str, capsys) -> None:
    assert main(["serve", *options]) == 2
    assert capsys.readouterr().err == f"holdfast: error: {printed}"


def test_a_process_that_offers_nothing_is_refused(capsys) -> None:
    assert main(["serve", "--pid", "2147483647"]) == 2
    assert capsys.readouterr().err.startswith(
        "holdfast: error: there is no process 2147483647\n  expected: "
    )


# ---- as people run it


@contextmanager
def _serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield process, json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly_while_a_page_is_open(how: signal.Signals) -> None:
    with _serving() as (process, url):
        with urllib.request.urlopen(f"{url}api/v1/events", timeout=300) as stream:
            assert stream.readline() == b"retry: 1000\n"
            process.send_signal(how)
            rest = stream.read()
            assert rest.endswith(b"\n\n")
        assert process.communicate(timeout=300) == ("", "")
        assert process.returncode == 0


def test_it_loads_no_torch_and_no_numpy() -> None:
    program = (
        "import sys, holdfast.cli.serve;"
        "print([m for m in ('torch', 'numpy', 'jax', 'textual') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
