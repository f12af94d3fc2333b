from __future__ import annotations

import json

import pytest

from holdfast.base.errors import BadInput
from holdfast.pipeline.batch import form_of, read

JSON_LINES = "json lines"
NAMES = "prompt and, where wanted, negative, height, width, steps, seed, guidance, num_frames, out"


def _prompts(text: str, form: str) -> list[tuple[str, dict]]:
    return [(row.where, dict(row.values)) for row in read(text, form, "file")]


def test_json_lines_skip_blanks_and_comments_and_know_their_line() -> None:
    text = '\ufeff# two prompts\r\n\r\n{"prompt": "a cat"}\r\n  {"prompt": "a dog", "steps": 4}\r\n'
    assert _prompts(text, JSON_LINES) == [
        ("line 3", {"prompt": "a cat"}),
        ("line 4", {"prompt": "a dog", "steps": 4}),
    ]


def test_a_line_separator_of_unicode_does_not_end_a_json_line() -> None:
    assert _prompts('{"prompt": "a\u2028b\x85c"}', JSON_LINES) == [
        ("line 1", {"prompt": "a\u2028b\x85c"})
    ]


def test_null_is_the_same_as_left_out() -> None:
    text = '{"prompt": "a", "seed": null}'
    assert _prompts(text, JSON_LINES) == [("line 1", {"prompt": "a"})]


def test_a_whole_number_is_good_for_guidance() -> None:
    values = _prompts('{"prompt": "a", "guidance": 3}', JSON_LINES)[0][1]
    assert repr(values["guidance"]) == "3.0"


def test_a_json_list_counts_items() -> None:
    text = json.dumps([{"prompt": "a"}, {"prompt": "b", "out": "b.png"}])
    assert _prompts(text, "json list") == [
        ("item 1", {"prompt": "a"}),
        ("item 2", {"prompt": "b", "out": "b.png"}),
    ]


def test_csv_with_quoted_newlines_empty_cells_and_short_rows() -> None:
    text = (
        '\ufeffprompt,steps,guidance,out\r\n"a cat,\r\nasleep",4,,\r\n\r\n'
        'a dog\r\n"b",, 2.5 ,b.png\r\n'
    )
    assert _prompts(text, "csv") == [
        ("line 2", {"prompt": "a cat,\r\nasleep", "steps": 4}),
        ("line 5", {"prompt": "a dog"}),
        ("line 6", {"prompt": "b", "guidance": 2.5, "out": "b.png"}),
    ]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_csv_may_use_semicolons_or_tabs(delimiter: str) -> None:
    text = f"prompt{delimiter}seed\na, b{delimiter}7\n"
    assert _prompts(text, "csv") == [("line 2", {"prompt": "a, b", "seed": 7})]


def test_csv_with_one_column_is_a_list_of_prompts() -> None:
    assert _prompts("prompt\na cat\n", "csv") == [("line 2", {"prompt": "a cat"})]


def test_every_bad_line_is_told_at_once() -> None:
    text = "\n".join(
        [
            '{"prompt": "good"}',
            '{"promt": "a"}',
            '{"prompt": ""}',
            '{"prompt": "a", "steps": "many"}',
            '{"prompt": "a", "steps": 0}',
            '{"prompt": "a", "steps": true}',
            '{"prompt": "a", "guidance": NaN}',
            '{"prompt": "a", "out": "../b.png"}',
            '{"prompt": "a", "prompt": "b"}',
            '{"prompt": "a"',
            '["a"]',
            "{}",
            '{"prompt": "\\ud800"}',
        ]
    )
    with pytest.raises(BadInput) as caught:
        read(text, JSON_LINES, "prompts.jsonl")
    assert str(caught.value) == (
        "cannot use 'prompts.jsonl': 12 bad lines, nothing was started\n"
        "  line 2: unknown key 'promt', probably 'prompt'\n"
        "  line 3: prompt is '', not text that is not empty\n"
        "  line 4: steps is 'many', not an integer from 1\n"
        "  line 5: steps is 0, not an integer from 1\n"
        "  line 6: steps is True, not an integer from 1\n"
        "  line 7: guidance is nan, not a number from 0\n"
        "  line 8: out is '../b.png', not a file name inside the output folder, such as cat.png\n"
        "  line 9: the key 'prompt' is there twice\n"
        "  line 10: it is not JSON: Expecting ',' delimiter at column 15\n"
        '  line 11: it is a list, not an object such as {"prompt": "a cat"}\n'
        "  and 2 more\n"
        f"  expected: one JSON object in each line, with {NAMES}"
    )


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".a.png",
        "/a.png",
        "../a.png",
        "a/../../b.png",
        "a//b.png",
        "a/.holdfast-batch/b.png",
        "C:\\a.png",
        "..\\a.png",
        "\\\\host\\share\\a.png",
        "a\nb.png",
        "x" * 197 + ".png",
    ],
)
def test_a_name_that_could_leave_the_folder_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="not a file name inside the output folder"):
        read(json.dumps({"prompt": "a", "out": name}), JSON_LINES, "file")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("promt\na\n", "unknown key 'promt', probably 'prompt'"),
        ("steps\n4\n", "its first line does not name a column 'prompt'"),
        ("prompt,prompt\na,b\n", "the key 'prompt' is there twice"),
        ('prompt\n"a\n', "line 2 is not CSV: unexpected end of data"),
    ],
)
def test_csv_that_is_wrong_as_a_whole_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(text, "csv", "prompts.csv")
    assert str(caught.value) == (
        f"cannot use 'prompts.csv': {reason}\n"
        f"  expected: a first line of names ({NAMES}), then a line for each picture"
    )


def test_a_csv_row_with_too_many_cells_is_a_bad_line() -> None:
    with pytest.raises(BadInput) as caught:
        read("prompt,steps\na,4\nb, with a comma,4\n", "csv", "prompts.csv")
    assert caught.value.what == (
        "cannot use 'prompts.csv': 1 bad line, nothing was started\n"
        "  line 3: it has 3 cells, the first line names 2"
    )


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_a_file_without_prompts_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"there is no prompt in 'prompts\.jsonl'"):
        read(text, JSON_LINES, "prompts.jsonl")


def test_a_json_file_that_is_no_list_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        read('{"prompt": "a"}', "json list", "prompts.json")
    assert str(caught.value) == (
        "cannot use 'prompts.json': it is an object, not a list\n"
        f"  expected: a list of objects with {NAMES}"
    )


def test_json_nested_too_deep_is_a_bad_line() -> None:
    with pytest.raises(BadInput, match="line 1: it is not JSON"):
        read("[" * 100_000, JSON_LINES, "file")


def test_the_form_is_known_by_the_name() -> None:
    assert [form_of(name) for name in ("a.jsonl", "b.NDJSON", "c.json", "d.csv", "-")] == [
        "json lines",
        "json lines",
        "json list",
        "csv",
        "json lines",
    ]
    with pytest.raises(BadInput) as caught:
        form_of("prompts.txt")
    assert str(caught.value) == (
        "cannot tell what 'prompts.txt' holds from its name\n"
        "  expected: a name that ends in .jsonl, .ndjson, .json, .csv, .tsv, "
        "or - for standard input"
    )
