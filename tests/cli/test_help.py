"""The help of every command and of every action: it is short, whole, and its examples are real."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys

import pytest

from holdfast.cli.main import COMMANDS, GROUPS, main, parser_for
from holdfast.cli.parsing import Example, Parser, actions_of, describe
from tests.cli.trees import all_parsers, all_paths

PATHS = all_paths()


def named(path: tuple[str, ...]) -> str:
    return " ".join(path)


def help_of(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main([*path, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def parser_at(path: tuple[str, ...]) -> Parser:
    found = dict(all_parsers(path[0]))[path]
    assert isinstance(found, Parser)
    return found


def test_every_command_is_in_one_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)


def test_the_groups_are_shown_with_a_line_for_each_command(capsys) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "usage: holdfast COMMAND [OPTION ...]\n\n"
        "Run diffusion models on the hardware people actually have.\n\n"
        "draw:\n"
        "  run         draw a picture or a video from a prompt\n"
    )
    for name in COMMANDS:
        assert f"\n  {name.ljust(10)}  {COMMANDS.entry(name).summary}\n" in out


@pytest.mark.parametrize("columns", ["80", "300"])
@pytest.mark.parametrize("path", [(), *PATHS], ids=named)
def test_help_fits_the_terminal_and_has_examples(
    path: tuple[str, ...], columns: str, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = help_of(path, capsys)
    assert [line for line in text.splitlines() if len(line) > min(int(columns), 100)] == []
    assert f"\nexamples:\n  {'' if 'echo' in text else 'holdfast'}" in text
    assert "%(" not in text
    assert "None" not in text


@pytest.mark.parametrize("path", [(), *PATHS], ids=named)
def test_every_example_is_one_that_the_parser_takes(path: tuple[str, ...], monkeypatch) -> None:
    parser = parser_at(path) if path else parser_for([])
    assert isinstance(parser, Parser)
    assert parser.examples
    for example in parser.examples:
        arguments = arguments_of(example.command)
        assert arguments[: len(path)] == list(path) or not path
        if arguments[-1:] == ["--help"]:
            continue
        parsed = parser_for(arguments).parse_args(arguments)
        assert parsed.command == arguments[0]


def arguments_of(command: str) -> list[str]:
    """What `holdfast` gets of a line that may be more: a pipe, a file to write to."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    begin = words.index("holdfast") + 1
    end = next((i for i in range(begin, len(words)) if words[i] in ("|", ">", ")", "&")), None)
    return words[begin:end]


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_every_argument_is_explained_and_tells_its_default(path: tuple[str, ...]) -> None:
    silent, nameless = [], []
    for action in parser_at(path)._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        if not action.help:
            silent.append(action.dest)
        tells = "default" in (action.help or "")
        if action.nargs != 0 and action.default not in (None, argparse.SUPPRESS) and not tells:
            silent.append(action.dest)
        if action.nargs != 0 and action.choices is None and not action.metavar:
            nameless.append(action.dest)
    assert (silent, nameless) == ([], [])


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_an_unknown_option_is_refused(path: tuple[str, ...], capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*path, "--no-such-option"])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("usage: holdfast ")
    assert "--no-such-option" in err or "the following arguments are required" in err


def test_examples_are_below_where_the_terminal_is_narrow(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    parser = Parser(prog="holdfast try")
    actions = parser.add_subparsers(dest="action")
    actions.add_parser("once", help="one time")
    describe(
        parser,
        "Try.\n\nexamples:\n"
        "holdfast try once --with words   a line of text that is too long for one line\n"
        "holdfast try                     twice\n",
    )
    assert parser.format_help().partition("examples:\n")[2] == (
        "  holdfast try once --with words\n"
        "      a line of text that is too long\n"
        "      for one line\n"
        "  holdfast try\n"
        "      twice\n"
    )
    action = actions_of(parser)["once"]
    assert isinstance(action, Parser)
    assert action.examples == (
        Example("holdfast try once --with words", "a line of text that is too long for one line"),
    )


def test_help_of_every_command_loads_no_torch() -> None:
    program = (
        "import sys; from holdfast.cli import tree; tree.all_commands(lambda _: None);"
        "print([m for m in ('torch', 'diffusers', 'jax', 'textual') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().splitlines()[-1] == "[]"
