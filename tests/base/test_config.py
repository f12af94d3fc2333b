from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.base.config import Config, default_cache_dir, unknown_variables
from holdfast.base.errors import BadInput


def test_options_win_over_variables_and_variables_over_defaults() -> None:
    environ = {"HOLDFAST_ROOT": "/from/variable", "HOLDFAST_PROBE_TIMEOUT_S": "7"}
    config = Config.load(environ, root="/from/option")
    assert config.root == Path("/from/option")
    assert config.probe_timeout_s == 7.0
    assert config.debug is False


def test_an_option_that_is_none_was_not_given() -> None:
    assert Config.load({"HOLDFAST_SIMULATE": "1x1GB"}, simulate=None).simulate == "1x1GB"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "HOLDFAST_PROBE_TIMEOUT_S",
            "soon",
            "cannot use HOLDFAST_PROBE_TIMEOUT_S='soon'\n  expected: a number above 0",
        ),
        (
            "HOLDFAST_PROBE_TIMEOUT_S",
            "nan",
            "cannot use HOLDFAST_PROBE_TIMEOUT_S='nan'\n  expected: a number above 0",
        ),
        (
            "HOLDFAST_DEBUG",
            "maybe",
            "cannot use HOLDFAST_DEBUG='maybe'\n  expected: 1, true, yes, on, 0, false, no or off",
        ),
        (
            "HOLDFAST_PROBES",
            ", ,",
            "cannot use HOLDFAST_PROBES=', ,'\n  expected: names separated by commas",
        ),
        (
            "HOLDFAST_CACHE_DIR",
            "~nobody123/x",
            "cannot use HOLDFAST_CACHE_DIR='~nobody123/x'\n  expected: a path",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_named(variable: str, value: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        Config.load({variable: value})
    assert str(caught.value) == message


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown setting 'colour'"):
        Config.load({}, colour="red")


def test_words_and_lists_are_read() -> None:
    config = Config.load({"HOLDFAST_DEBUG": "Yes", "HOLDFAST_PROBES": "linux, pci"})
    assert config.debug is True
    assert config.probes == ("linux", "pci")


def test_variables_that_nothing_reads_are_found_with_the_one_that_was_meant() -> None:
    environ = {"HOLDFAST_CAHCE_DIR": "/x", "HOLDFAST_ROOT": "/", "HOME": "/root"}
    assert unknown_variables(environ) == {"HOLDFAST_CAHCE_DIR": "HOLDFAST_CACHE_DIR"}


def test_caches_go_where_the_system_keeps_them() -> None:
    home = Path.home()
    assert default_cache_dir({}, "linux") == home / ".cache" / "holdfast"
    assert default_cache_dir({"XDG_CACHE_HOME": "/c"}, "linux") == Path("/c/holdfast")
    assert default_cache_dir({}, "darwin") == home / "Library" / "Caches" / "holdfast"
    assert default_cache_dir({"LOCALAPPDATA": "/l"}, "win32") == Path("/l/holdfast")


def test_settings_can_be_used_as_a_key() -> None:
    assert len({Config.load({}), Config.load({}), Config.load({"HOLDFAST_DEBUG": "1"})}) == 2
