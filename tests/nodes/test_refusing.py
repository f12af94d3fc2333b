"""What ComfyUI lets through and the nodes do not."""

from __future__ import annotations

import inspect
from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput, OutOfMemory
from holdfast.nodes import NODE_CLASS_MAPPINGS, refusing, tensor
from holdfast.nodes.host import fitting, following

LINEAR, CONV = tensor.CustomPyTorchLinear(), tensor.CustomPyTorchConv2D()
OPS = tensor.CustomPyTorchTensorOps()


@pytest.fixture
def hundred_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So much is free."""
    monkeypatch.setattr(refusing, "free_bytes", lambda: 10**8)


def test_a_value_in_place_of_a_link_is_refused_in_three_parts() -> None:
    node = NODE_CLASS_MAPPINGS["SVMMemoryCleanupNode"]
    assert node.VALIDATE_INPUTS() is True
    assert node.VALIDATE_INPUTS(memory_pointer=None) is True  # linked
    assert node.VALIDATE_INPUTS(memory_pointer="0x7fff00000000") == (
        "memory_pointer is '0x7fff00000000', a value of the workflow file\n"
        "  expected: a link to an output of type POINTER\n"
        "  try: connect the node that makes the memory_pointer"
    )


@pytest.mark.parametrize("value", ["y" * 10**6, {"a": ["b" * 10**5]}, 10**4000], ids=type)
def test_a_long_value_makes_no_long_text(value: object) -> None:
    told = NODE_CLASS_MAPPINGS["CustomPyTorchLoss"].VALIDATE_INPUTS(target=value)
    assert told.startswith("target is ")
    assert len(told) < 500


def test_comfyui_finds_the_names_of_what_is_checked() -> None:
    node = NODE_CLASS_MAPPINGS["CustomPyTorchTensorOps"]
    asked = inspect.getfullargspec(node.VALIDATE_INPUTS)
    assert asked.args == ["cls", "tensor_a", "tensor_b"]
    assert asked.varkw is None  # else ComfyUI would leave all other checks to the node


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e308, "x", [1], {}])
@pytest.mark.parametrize("name", ["HoldfastStreamModel", "HoldfastWillItFit"])
def test_a_budget_that_is_no_number_is_refused_before_anything_runs(
    name: str, value: object
) -> None:
    node = NODE_CLASS_MAPPINGS[name]
    assert "\n  expected: a number from 0" in node.VALIDATE_INPUTS(budget_gb=value)
    assert node.VALIDATE_INPUTS(budget_gb=1.5) is True


# ---- memory


@pytest.mark.usefixtures("hundred_megabytes")
def test_a_layer_larger_than_free_memory_is_refused_before_it_is_made() -> None:
    with pytest.raises(OutOfMemory) as caught:
        LINEAR.forward(numpy.ones((4, 50_000), "float32"), 50_000, 60_000)
    assert str(caught.value) == (
        "cannot put [4, 50000] through a matrix of 50000 x 60000: that takes 72.0 GB of RAM\n"
        "  expected: at most the 100 MB that are free\n"
        "  try: fewer out_features, or a smaller tensor"
    )
    with pytest.raises(OutOfMemory) as caught:
        CONV.forward(numpy.ones((1, 8, 8, 3), "float32"), 3, 3, padding=60_000)
    assert str(caught.value) == (
        "cannot move a window of 3 x 3 over pictures of 120008 x 120008, padding included, with "
        "3 out_channels: that takes 864 GB of RAM\n"
        "  expected: at most the 100 MB that are free\n"
        "  try: a smaller padding or kernel_size, fewer out_channels, or a larger stride"
    )


@pytest.mark.usefixtures("hundred_megabytes")
@pytest.mark.parametrize("kind", ["add", "multiply", "matmul"])
def test_a_result_larger_than_free_memory_is_refused_before_it_is_made(kind: str) -> None:
    tall, wide = numpy.ones((9000, 1), "float32"), numpy.ones((1, 9000), "float32")
    with pytest.raises(OutOfMemory) as caught:
        OPS.compute(tall, wide, kind)
    assert str(caught.value) == (
        f"cannot {kind} [9000, 1] and [1, 9000]: that takes 648 MB of RAM\n"
        "  expected: at most the 100 MB that are free\n"
        "  try: smaller tensors, or tensors of one shape"
    )


@pytest.mark.usefixtures("hundred_megabytes")
def test_what_fits_is_computed() -> None:
    assert LINEAR.forward(numpy.ones((10, 100), "float32"), 100, 10)[0].shape == (10, 10)
    assert CONV.forward(numpy.ones((1, 8, 8, 3), "float32"), 3, 3)[0].shape == (1, 8, 8, 3)
    long, matrix = numpy.ones(50_000, "float32"), numpy.ones((50_000, 2), "float32")
    assert OPS.compute(long, matrix, "matmul")[0].shape == (2,)  # no 50000 x 50000 anywhere


def test_layers_are_kept_up_to_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tensor._Layers(64, 10**6)
    monkeypatch.setattr(tensor, "_layers", kept)
    for seed in range(5):
        LINEAR.forward(numpy.ones((1, 300), "float32"), 300, 300, seed=seed)  # 361 kB each
        assert len(kept) == min(seed + 1, 2)
    LINEAR.forward(numpy.ones((1, 600), "float32"), 600, 600)
    assert len(kept) == 1  # the last one stays, whatever its size


# ---- what comes over a link that takes anything


def test_a_latent_in_a_latent_is_none() -> None:
    with pytest.raises(BadInput, match="tensor is a dict"):
        tensor.CustomPyTorchActivation().activate({"samples": {"samples": [1.0]}})


class _Model:
    load_device = "cpu"
    model: Any = None

    def model_size(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("beside", "text"),
    [
        (
            {"positive": "x"},
            "cannot look at a positive of type str\n  expected: a CONDITIONING of ComfyUI\n"
            "  try: connect the text encoder, or leave it open",
        ),
        (
            {"positive": [["a", "b"]]},
            "cannot look at a positive of type list\n  expected: a CONDITIONING of ComfyUI\n"
            "  try: connect the text encoder, or leave it open",
        ),
        (
            {"vae": 7},
            "cannot decode with a int\n  expected: a VAE of ComfyUI\n"
            "  try: connect the loader of the checkpoint or of the VAE, or leave it open",
        ),
    ],
)
def test_what_is_no_conditioning_and_no_decoder_is_refused(
    beside: dict[str, Any], text: str
) -> None:
    with pytest.raises(BadInput) as caught:
        fitting.question(_Model(), {}, **beside)
    assert str(caught.value) == text


# ---- prompts that are none


class _Server:
    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def add_on_prompt_handler(self, handler: Any) -> None:
        self.handlers.append(handler)


def test_only_documents_are_followed_and_none_is_changed() -> None:
    server, seen = _Server(), []
    assert following.watch(seen.append, server)
    (handler,) = server.handlers
    document = {"prompt": {}}
    for sent in (document, [], "x", None, 7):
        assert handler(sent) is sent
    assert seen == [document]
