from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

import holdfast
from holdfast.cli.main import COMMANDS, main
from holdfast.residency.interrupt import InterruptProcessingException


def test_no_command_shows_the_help(capsys) -> None:
    assert main([]) == 0
    assert "holdfast topo --svg machine.svg" in capsys.readouterr().out


def test_the_version_is_printed(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"holdfast {holdfast.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert f"examples:\n  holdfast {command}" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_an_unknown_option(command: str, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--no-such-option"])
    assert caught.value.code == 2
    assert "unrecognized arguments: --no-such-option" in capsys.readouterr().err


def test_an_unknown_command_is_refused(capsys) -> None:
    assert main(["tpoo"]) == 2
    assert capsys.readouterr().err == (
        "holdfast: error: unknown command 'tpoo'\n"
        f"  expected: one of {', '.join(COMMANDS)}\n"
        "  try: topo\n"
    )


def test_an_error_is_text_and_a_status(capsys) -> None:
    assert main(["topo", "--simulate", "2xfoo"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "holdfast: error: cannot read '2xfoo' in the simulated machine '2xfoo': "
        "'foo' is not a size\n"
        "  expected: groups COUNTxSIZE[:far][:cpus=N][:gpu=SIZE] separated by commas\n"
        "  try: 2x16GB,1x64GB:far\n"
    )


def test_a_setting_that_cannot_be_used_is_text_too(capsys, monkeypatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "maybe")
    assert main(["topo"]) == 2
    assert capsys.readouterr().err == (
        "holdfast: error: cannot use HOLDFAST_DEBUG='maybe'\n"
        "  expected: 1, true, yes, on, 0, false, no or off\n"
    )


def test_debugging_shows_the_traceback(monkeypatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    with pytest.raises(ValueError, match="2xfoo"):
        main(["topo", "--simulate", "2xfoo"])


def test_ctrl_c_is_a_status(capsys, monkeypatch) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(COMMANDS["topo"], "run", interrupted)
    assert main(["topo"]) == 130
    assert capsys.readouterr().err == "\nholdfast: stopped by Ctrl-C\n"


def test_a_request_to_stop_is_the_same_status(capsys, monkeypatch) -> None:
    def interrupted(args: object) -> int:
        raise InterruptProcessingException("processing was interrupted")

    monkeypatch.setattr(COMMANDS["topo"], "run", interrupted)
    assert main(["topo"]) == 130
    assert capsys.readouterr().err == "\nholdfast: stopped on request\n"


def test_ctrl_c_wrapped_by_an_import_is_the_same_status(capsys, monkeypatch) -> None:
    def interrupted(args: object) -> int:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(COMMANDS["topo"], "run", interrupted)
    assert main(["topo"]) == 130
    assert capsys.readouterr().err == "\nholdfast: stopped by Ctrl-C\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{shlex.quote(sys.executable)} -m holdfast topo --simulate 200x1GB --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_help_imports_only_what_it_shows() -> None:
    program = (
        "import sys; from holdfast.cli.main import main; main([]);"
        "print([m for m in sys.modules if m.startswith('holdfast.topology')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().splitlines()[-1] == "[]"
