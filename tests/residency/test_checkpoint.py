from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from holdfast.base.errors import BadInput
from holdfast.residency.files.checkpoint import TensorInfo, read_header

NEGATIVE = '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}'
TEXT = '{"a": {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]}}'


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "whole.safetensors"
    tensors = {"a": torch.zeros(3, 4), "b": torch.zeros(5, dtype=torch.float16)}
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def test_a_header_tells_shape_format_and_size(whole: Path) -> None:
    tensors = read_header(whole)
    data = whole.stat().st_size - 58
    assert tensors == {
        "a": TensorInfo("F32", (3, 4), data, data + 48),
        "b": TensorInfo("F16", (5,), data + 48, data + 58),
    }
    assert tensors["a"].elements == 12
    assert [tensor.size_bytes for tensor in tensors.values()] == [48, 10]


def test_the_bytes_of_a_tensor_are_where_its_header_says(tmp_path: Path) -> None:
    path = tmp_path / "numbers.safetensors"
    tensors = {"a": torch.arange(7), "b": torch.rand(2, 3), "c": torch.tensor([True, False])}
    save_file(tensors, path)
    content = path.read_bytes()
    for name, found in read_header(path).items():
        assert content[found.start : found.end] == tensors[name].numpy().tobytes()


@pytest.mark.parametrize(
    ("span", "found"), [([0, 40], "40 B"), ([48, 0], "-48 B"), ([0, 0], "0 B")]
)
def test_a_tensor_of_a_size_that_does_not_fit_its_shape_is_refused(
    tmp_path: Path, span: list[int], found: str
) -> None:
    path = tmp_path / "x.safetensors"
    header = {"a": {"dtype": "F32", "shape": [3, 4], "data_offsets": span}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(100))
    with pytest.raises(BadInput) as caught:
        read_header(path)
    assert str(caught.value) == (
        f"cannot read weights {str(path)!r}: 'a' has {found}\n"
        "  expected: 48 B for F32 of shape [3, 4]\n"
        "  try: download or copy it again"
    )


def test_a_format_that_is_not_known_yet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    text = json.dumps({"a": {"dtype": "F3", "shape": [8], "data_offsets": [0, 3]}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(3))
    data = 8 + len(text)
    assert read_header(path) == {"a": TensorInfo("F3", (8,), data, data + 3)}


def test_a_truncated_file_says_how_much_of_it_is_there(whole: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(BadInput) as caught:
        read_header(cut)
    assert str(caught.value) == (
        f"cannot read weights {str(cut)!r}: it ends after 38 B of 58 B\n"
        "  expected: a whole safetensors file\n"
        "  try: download or copy it again"
    )


@given(data=st.data())
def test_a_file_cut_at_any_byte_is_refused(whole: Path, data: st.DataObject) -> None:
    content = whole.read_bytes()
    length = data.draw(st.integers(0, len(content) - 1))
    cut = whole.with_name("any.safetensors")
    cut.write_bytes(content[:length])
    with pytest.raises(BadInput):
        read_header(cut)


@given(content=st.binary(max_size=200))
def test_other_bytes_are_refused_or_read_but_never_crash(whole: Path, content: bytes) -> None:
    other = whole.with_name("other.safetensors")
    other.write_bytes(content)
    try:
        read_header(other)
    except BadInput as exc:
        assert str(other) in str(exc)  # noqa: PT017  some bytes are a valid, empty file


@pytest.mark.parametrize(
    "text", ['{"a": 1}', '{"a": {"dtype": "F32"}}', NEGATIVE, TEXT, "[]", "null", "{nonsense"]
)
def test_a_header_of_another_shape_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode())
    with pytest.raises(BadInput, match="it is not a safetensors file"):
        read_header(path)


def test_a_missing_file_and_a_folder_give_the_systems_reason(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_header(tmp_path / "none.safetensors")
    with pytest.raises(BadInput, match="Is a directory"):
        read_header(tmp_path)
