"""The five tensor nodes from plain Python, from the example workflows, and without torch."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import numpy
import pytest
import torch

from holdfast import nodes
from holdfast.base.errors import BadInput
from holdfast.compute import CustomTensor
from holdfast.compute import random as drawing
from holdfast.nodes import EXAMPLE_WORKFLOWS
from holdfast.nodes import tensor as module
from holdfast.nodes.tensor import (
    NODE_CLASS_MAPPINGS,
    NODE_DISPLAY_NAME_MAPPINGS,
    CustomPyTorchActivation,
    CustomPyTorchConv2D,
    CustomPyTorchLinear,
    CustomPyTorchLoss,
    CustomPyTorchTensorOps,
)

TENSOR = module.TENSOR


@pytest.fixture(autouse=True)
def no_layers() -> None:
    module.forget_layers()


def picture(*shape: int) -> torch.Tensor:
    return torch.rand(shape or (1, 6, 5, 3), generator=torch.Generator().manual_seed(0))


# ---- as the specification has them

SPECIFIED = {
    "CustomPyTorchLinear": (
        {
            "tensor": ("required", TENSOR),
            "in_features": ("required", "INT"),
            "out_features": ("required", "INT"),
            "use_bias": ("required", "BOOLEAN"),
            "seed": ("optional", "INT"),
        },
        {"tensor": TENSOR},
    ),
    "CustomPyTorchConv2D": (
        {
            "image": ("required", "IMAGE"),
            "in_channels": ("required", "INT"),
            "out_channels": ("required", "INT"),
            "kernel_size": ("required", "INT"),
            "stride": ("required", "INT"),
            "padding": ("required", "INT"),
            "use_bias": ("required", "BOOLEAN"),
            "clamp": ("optional", "BOOLEAN"),
            "seed": ("optional", "INT"),
        },
        {"image": "IMAGE"},
    ),
    "CustomPyTorchActivation": (
        {
            "tensor": ("required", TENSOR),
            "activation_type": ("required", ["relu", "sigmoid", "tanh"]),
        },
        {"tensor": TENSOR},
    ),
    "CustomPyTorchLoss": (
        {
            "prediction": ("required", TENSOR),
            "target": ("required", TENSOR),
            "loss_type": ("required", ["mse", "mae"]),
        },
        {"loss": "FLOAT"},
    ),
    "CustomPyTorchTensorOps": (
        {
            "tensor_a": ("required", TENSOR),
            "tensor_b": ("required", TENSOR),
            "operation": ("required", ["add", "multiply", "matmul"]),
        },
        {"tensor": TENSOR},
    ),
}


def _entries(node: Any) -> dict[str, tuple[str, Any, Any]]:
    """Inputs by name: the part they stand in, their type, their options."""
    return {
        name: (part, *entry)
        for part, entries in node.INPUT_TYPES().items()
        if part != "hidden"
        for name, entry in entries.items()
    }


def test_the_nodes_have_the_inputs_and_outputs_of_the_specification() -> None:
    found = {}
    for name, node in NODE_CLASS_MAPPINGS.items():
        inputs = {key: entry[:2] for key, entry in _entries(node).items()}
        found[name] = inputs, dict(zip(node.RETURN_NAMES, node.RETURN_TYPES, strict=True))
        assert callable(getattr(node(), node.FUNCTION))
        assert node.CATEGORY == "PyTorch Custom"
    assert found == SPECIFIED


def test_the_names_people_read_are_those_of_the_document() -> None:
    assert NODE_DISPLAY_NAME_MAPPINGS == {
        "CustomPyTorchLinear": "Custom Linear Layer",
        "CustomPyTorchConv2D": "Custom Conv2D Layer",
        "CustomPyTorchActivation": "Custom Activation",
        "CustomPyTorchLoss": "Custom Loss Function",
        "CustomPyTorchTensorOps": "Custom Tensor Operations",
    }
    assert list(NODE_CLASS_MAPPINGS) == list(NODE_DISPLAY_NAME_MAPPINGS)


def test_the_pack_has_them_beside_the_others() -> None:
    assert NODE_CLASS_MAPPINGS.items() <= nodes.NODE_CLASS_MAPPINGS.items()
    assert NODE_DISPLAY_NAME_MAPPINGS.items() <= nodes.NODE_DISPLAY_NAME_MAPPINGS.items()
    assert list(nodes.NODE_DISPLAY_NAME_MAPPINGS) == list(nodes.NODE_CLASS_MAPPINGS)


@pytest.mark.parametrize("node", NODE_CLASS_MAPPINGS.values())
def test_every_input_and_output_is_explained(node: Any) -> None:
    assert all(len(options["tooltip"]) > 10 for *_, options in _entries(node).values())
    assert len(node.OUTPUT_TOOLTIPS) == len(node.RETURN_TYPES)
    assert node.DESCRIPTION


def test_the_figures_of_the_document_come_out() -> None:
    (out,) = CustomPyTorchLinear().forward(numpy.ones((2, 10)), 10, 5, True)
    assert out.shape == (2, 5)
    for kind in ("relu", "sigmoid", "tanh"):
        assert CustomPyTorchActivation().activate([[-1.0, 2.0]], kind)[0].shape == (1, 2)
    assert CustomPyTorchTensorOps().compute([[1, 2]], [[3], [4]], "matmul")[0].tolist() == [[11]]


# ---- kinds

MAKE = {
    "torch": lambda a: torch.from_numpy(a.copy()),
    "CustomTensor": lambda a: CustomTensor(a, dtype=a.dtype),
    "array": lambda a: a.copy(),
    "list": lambda a: a.tolist(),
}
KIND = {"torch": torch.Tensor, "CustomTensor": CustomTensor}


@pytest.mark.parametrize("kind", MAKE)
def test_a_result_is_of_the_kind_its_input_was(kind: str) -> None:
    array = numpy.linspace(-1, 1, 12, dtype=numpy.float32).reshape(1, 2, 2, 3)
    value, wanted = MAKE[kind](array), KIND.get(kind, CustomTensor)
    results = [
        CustomPyTorchLinear().forward(value, 3, 4, True)[0],
        CustomPyTorchConv2D().forward(value, 3, 2)[0],
        CustomPyTorchActivation().activate(value, "tanh")[0],
        CustomPyTorchTensorOps().compute(value, value, "add")[0],
    ]
    assert [type(result) for result in results] == [wanted] * 4
    assert [tuple(r.shape[-1:]) for r in results] == [(4,), (2,), (3,), (3,)]
    assert all(str(r.dtype).endswith("float32") for r in results)
    numpy.testing.assert_array_equal(numpy.asarray(value), array)  # it is as it was
    assert isinstance(CustomPyTorchLoss().compute_loss(value, value, "mse")[0], float)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_torch_keeps_its_format(kind: torch.dtype) -> None:
    value = picture().to(kind)
    for out in (
        CustomPyTorchLinear().forward(value, 3, 4, True)[0],
        CustomPyTorchConv2D().forward(value, 3, 2)[0],
        CustomPyTorchActivation().activate(value, "sigmoid")[0],
        CustomPyTorchTensorOps().compute(value, value, "multiply")[0],
    ):
        assert (out.dtype, out.device) == (kind, value.device)
    expected = torch.sigmoid(value)
    torch.testing.assert_close(CustomPyTorchActivation().activate(value, "sigmoid")[0], expected)


def test_whole_numbers_become_fractions_only_where_they_have_to() -> None:
    value = torch.tensor([[1, 2, 3]])
    assert CustomPyTorchTensorOps().compute(value, value, "add")[0].dtype == torch.int64
    assert CustomPyTorchActivation().activate(value, "relu")[0].dtype == torch.int64
    assert CustomPyTorchActivation().activate(value, "tanh")[0].dtype == torch.float32
    assert CustomPyTorchLinear().forward(value, 3, 2)[0].dtype == torch.float32
    mixed = CustomPyTorchTensorOps().compute(value, torch.ones(3, 1), "matmul")[0]
    assert (mixed.dtype, mixed.tolist()) == (torch.float32, [[6.0]])


def test_a_latent_stays_a_latent_with_all_that_belongs_to_it() -> None:
    latent = {"samples": torch.randn(1, 4, 2, 2), "noise_mask": "kept", "batch_index": [0]}
    (out,) = CustomPyTorchActivation().activate(latent, "relu")
    assert out["noise_mask"] == "kept"
    assert out["batch_index"] == [0]
    torch.testing.assert_close(out["samples"], latent["samples"].relu())
    (total,) = CustomPyTorchTensorOps().compute(torch.ones(1, 4, 2, 2), latent, "add")
    torch.testing.assert_close(total["samples"], latent["samples"] + 1)
    assert CustomPyTorchLoss().compute_loss(latent, latent, "mae") == (0.0,)


def test_of_two_kinds_the_one_with_a_home_decides() -> None:
    array, other = numpy.ones((2, 2), numpy.float32), torch.ones(2, 2)
    assert isinstance(CustomPyTorchTensorOps().compute(array, other, "add")[0], torch.Tensor)
    assert isinstance(CustomPyTorchTensorOps().compute(other, array, "add")[0], torch.Tensor)


def test_a_tensor_stays_on_its_device() -> None:
    value = CustomTensor(numpy.ones((1, 4, 4, 3)), device="custom_gpu")
    for out in (
        CustomPyTorchLinear().forward(value, 3, 2)[0],
        CustomPyTorchConv2D().forward(value, 3, 2)[0],
        CustomPyTorchActivation().activate(value, "relu")[0],
        CustomPyTorchTensorOps().compute(value, value, "add")[0],
    ):
        assert str(out.device) == "custom_gpu:0"


def test_what_requires_a_gradient_passes_it_on() -> None:
    x = CustomTensor(numpy.ones((2, 3)), requires_grad=True)
    node = CustomPyTorchLinear()
    (out,) = node.forward(x, 3, 2, True)
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (2, 3)
    (plain,) = node.forward(CustomTensor(numpy.ones((2, 3))), 3, 2, True)
    assert not plain.requires_grad  # the weights themselves ask for nothing


# ---- computing


def _weights(node: Any, size: int, outs: int, **settings: Any) -> tuple[Any, Any]:
    """Matrix and bias of a linear node, asked for by what it answers."""
    bias = node.forward(numpy.zeros((1, size)), size, outs, True, **settings)[0].data
    rows = node.forward(numpy.eye(size), size, outs, True, **settings)[0].data
    return rows - bias, bias


def test_the_linear_layer_multiplies_the_last_dimension() -> None:
    node, value = CustomPyTorchLinear(), torch.randn(2, 5, 3)
    matrix, bias = _weights(node, 3, 4)
    out = node.forward(value, 3, 4, True)[0]
    expected = torch.from_numpy(value.numpy() @ matrix + bias).float()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    zero = node.forward(torch.zeros(1, 3), 3, 4, False)[0]
    assert zero.tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize(("window", "step", "edge"), [(3, 1, 1), (1, 1, 0), (2, 2, 0), (5, 2, 2)])
def test_the_convolution_is_torchs_over_pictures(window: int, step: int, edge: int) -> None:
    value = picture(2, 7, 6, 3)
    (out,) = CustomPyTorchConv2D().forward(value, 3, 4, window, step, edge, True, seed=3)
    torch.manual_seed(3)
    theirs = torch.nn.Conv2d(3, 4, window, step, edge)
    with torch.no_grad():
        expected = theirs(value.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    assert out.is_contiguous()


def test_a_picture_without_a_batch_stays_without() -> None:
    value = picture(6, 5, 3)
    (out,) = CustomPyTorchConv2D().forward(value, 3, 3, seed=0)
    assert out.shape == (6, 5, 3)
    torch.testing.assert_close(out, CustomPyTorchConv2D().forward(value[None], 3, 3, seed=0)[0][0])


def test_values_are_clamped_only_on_demand() -> None:
    value = picture() * 10
    (free,) = CustomPyTorchConv2D().forward(value, 3, 3, seed=0)
    (kept,) = CustomPyTorchConv2D().forward(value, 3, 3, clamp=True, seed=0)
    assert free.min() < 0
    assert free.max() > 1
    torch.testing.assert_close(kept, free.clamp(0, 1))


def test_activations_losses_and_ops_compute_what_their_names_say() -> None:
    a, b = torch.randn(3, 3), torch.randn(3, 3)
    for kind in ("relu", "sigmoid", "tanh"):
        out = CustomPyTorchActivation().activate(a, kind)[0]
        torch.testing.assert_close(out, getattr(torch, kind)(a))
    mse, mae = (CustomPyTorchLoss().compute_loss(a, b, kind)[0] for kind in ("mse", "mae"))
    assert mse == pytest.approx(torch.nn.functional.mse_loss(a, b).item(), rel=1e-6)
    assert mae == pytest.approx(torch.nn.functional.l1_loss(a, b).item(), rel=1e-6)
    for kind, expected in (("add", a + b), ("multiply", a * b), ("matmul", a @ b)):
        torch.testing.assert_close(CustomPyTorchTensorOps().compute(a, b, kind)[0], expected)
    row = CustomPyTorchTensorOps().compute(a, b[:1], "add")[0]
    torch.testing.assert_close(row, a + b[:1])


# ---- weights that stay


def test_a_node_keeps_its_weights_from_run_to_run_and_object_to_object() -> None:
    value = numpy.ones((1, 3))
    first = CustomPyTorchLinear().forward(value, 3, 4, True, unique_id="7")[0].tolist()
    assert CustomPyTorchLinear().forward(value, 3, 4, True, unique_id="7")[0].tolist() == first
    assert CustomPyTorchLinear().forward(value, 3, 4, True, unique_id=7)[0].tolist() == first
    assert CustomPyTorchLinear().forward(value, 3, 4, True, unique_id="8")[0].tolist() != first


def test_without_an_id_each_object_is_a_node() -> None:
    value, node = numpy.ones((1, 3)), CustomPyTorchLinear()
    first = node.forward(value, 3, 4)[0].tolist()
    assert node.forward(value, 3, 4)[0].tolist() == first
    assert CustomPyTorchLinear().forward(value, 3, 4)[0].tolist() != first


def test_other_settings_are_other_weights_and_the_old_ones_come_back() -> None:
    value, node = numpy.ones((1, 3)), CustomPyTorchLinear()
    first = node.forward(value, 3, 4, unique_id="1")[0].tolist()
    assert node.forward(value, 3, 5, unique_id="1")[0].shape == (1, 5)
    assert node.forward(value, 3, 4, seed=1, unique_id="1")[0].tolist() != first
    assert node.forward(value, 3, 4, unique_id="1")[0].tolist() == first


def test_a_seed_gives_the_same_weights_everywhere_and_torchs_own() -> None:
    value = numpy.ones((1, 3))
    one = CustomPyTorchLinear().forward(value, 3, 4, seed=5, unique_id="1")[0]
    other = CustomPyTorchLinear().forward(value, 3, 4, seed=5, unique_id="2")[0]
    assert one.tolist() == other.tolist()
    torch.manual_seed(5)
    expected = torch.nn.Linear(3, 4)(torch.ones(1, 3))
    assert one.tolist()[0] == pytest.approx(expected.tolist()[0], abs=1e-6)
    program = (
        "import numpy; from holdfast.nodes.tensor import CustomPyTorchLinear; "
        "print(CustomPyTorchLinear().forward(numpy.ones((1, 3)), 3, 4, seed=5)[0].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(done.stdout) == one.tolist()


def test_drawing_weights_leaves_the_programs_random_numbers_alone() -> None:
    before = drawing.get_state()
    CustomPyTorchLinear().forward(numpy.ones((1, 3)), 3, 4)
    CustomPyTorchConv2D().forward(picture(), 3, 4, seed=1)
    after = drawing.get_state()
    assert before["position"] == after["position"]
    numpy.testing.assert_array_equal(before["key"], after["key"])


def test_only_so_many_layers_are_kept() -> None:
    value, node = numpy.ones((1, 2)), CustomPyTorchLinear()
    first = node.forward(value, 2, 1, unique_id="first")[0].tolist()
    for number in range(module.KEPT_LAYERS - 1):
        node.forward(value, 2, 1, unique_id=number)
    assert node.forward(value, 2, 1, unique_id="first")[0].tolist() == first
    for number in range(module.KEPT_LAYERS):
        node.forward(value, 2, 1, unique_id=f"more {number}")
    assert len(module._layers) == module.KEPT_LAYERS
    assert node.forward(value, 2, 1, unique_id="first")[0].tolist() != first


def test_threads_share_one_layer() -> None:
    found: list[Any] = []

    def work() -> None:
        value = numpy.ones((1, 3))
        found.append(CustomPyTorchLinear().forward(value, 3, 4, unique_id="t")[0].tolist())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 8


# ---- what cannot be

LINEAR, CONV = CustomPyTorchLinear(), CustomPyTorchConv2D()
REFUSED = {
    "another last size": (
        lambda: LINEAR.forward(torch.ones(2, 5), 10, 5, True),
        "the tensor [2, 5] has 5 as its last size, in_features is 10\n"
        "  expected: a tensor of [..., 10]\n  try: set in_features to 5",
    ),
    "no dimensions": (
        lambda: LINEAR.forward(3.0, 10, 5, True),
        "the tensor [] has no dimensions, in_features is 10\n"
        "  expected: a tensor of [..., 10]\n  try: connect another tensor",
    ),
    "no features": (
        lambda: LINEAR.forward(torch.ones(2, 5), 5, 0),
        "cannot use out_features=0\n  expected: an integer of at least 1",
    ),
    "half a feature": (
        lambda: LINEAR.forward(torch.ones(2, 5), 2.5, 1),  # type: ignore[arg-type]
        "cannot use in_features=2.5\n  expected: an integer of at least 1",
    ),
    "a seed below -1": (
        lambda: LINEAR.forward(torch.ones(2, 5), 5, 1, seed=-2),
        "cannot use seed=-2\n  expected: an integer of at least 0",
    ),
    "other channels": (
        lambda: CONV.forward(picture(1, 6, 5, 4), 3, 3),
        "the image [1, 6, 5, 4] has 4 channels, in_channels is 3\n"
        "  expected: pictures of [batch, height, width, 3]\n  try: set in_channels to 4",
    ),
    "no picture": (
        lambda: CONV.forward(torch.ones(3, 3), 3, 3),
        "the image [3, 3] has 2 dimensions\n"
        "  expected: pictures of [batch, height, width, channels], or one without batch\n"
        "  try: connect an IMAGE",
    ),
    "a window that is too large": (
        lambda: CONV.forward(picture(1, 6, 4, 3), 3, 3, 9, 1, 1),
        "a window of 9 x 9 does not fit into pictures of 4 x 6 with a padding of 1\n"
        "  expected: kernel_size to be at most the smaller side and twice the padding\n"
        "  try: set kernel_size to 6 or less, or padding to 3",
    ),
    "an unknown activation": (
        lambda: CustomPyTorchActivation().activate([1.0], "gelu"),
        "there is no activation_type 'gelu'\n  expected: one of relu, sigmoid, tanh",
    ),
    "an unknown loss": (
        lambda: CustomPyTorchLoss().compute_loss([1.0], [1.0], "huber"),
        "there is no loss_type 'huber'\n  expected: one of mse, mae",
    ),
    "two shapes": (
        lambda: CustomPyTorchLoss().compute_loss(torch.ones(2, 3), torch.ones(3), "mse"),
        "cannot compare the prediction [2, 3] with the target [3]\n"
        "  expected: two tensors of one shape that hold numbers\n"
        "  try: make both the same size, for pictures with a node that scales them",
    ),
    "matrices that do not meet": (
        lambda: CustomPyTorchTensorOps().compute(torch.ones(2, 3), torch.ones(2, 3), "matmul"),
        "cannot compute matmul(float32[2, 3], float32[2, 3]): 3 columns do not match 2 rows\n"
        "  expected: the columns of the first to be the rows of the second, and one dtype",
    ),
    "nothing": (
        lambda: CustomPyTorchActivation().activate(None),
        "tensor is missing\n"
        "  expected: a tensor, an image, a mask or a latent; in Python also an array or a list",
    ),
    "a word": (
        lambda: CustomPyTorchTensorOps().compute("a", [1]),
        "tensor_a is a str\n"
        "  expected: a tensor, an image, a mask or a latent; in Python also an array or a list",
    ),
    "rows of several lengths": (
        lambda: CustomPyTorchActivation().activate([[1], [2, 3]]),
        "cannot make a tensor of list: setting an array element with a sequence. The requested "
        "array has an inhomogeneous shape after 1 dimensions. The detected shape was (2,) + "
        "inhomogeneous part.\n  expected: numbers, in rows of one length, or an array",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_with_what_to_set(name: str) -> None:
    call, text = REFUSED[name]
    with pytest.raises(BadInput) as caught:
        call()
    assert str(caught.value) == text


# ---- the example workflows

WORKFLOWS = ["small_network_workflow.json", "loss_workflow.json"]
CORE: dict[str, dict[str, Any]] = {  # nodes that ComfyUI has itself: inputs that are sockets
    "LoadImage": {},
    "PreviewImage": {"images": "IMAGE"},
    "PreviewAny": {"source": "*"},
    "MarkdownNote": {},
}


def workflow(name: str) -> dict[str, Any]:
    return json.loads((EXAMPLE_WORKFLOWS / name).read_text(encoding="utf-8"))


def _accepts(node: dict[str, Any]) -> dict[str, Any]:
    if node["type"] in CORE:
        return CORE[node["type"]]
    return {
        name: kind for name, (_, kind, _) in _entries(NODE_CLASS_MAPPINGS[node["type"]]).items()
    }


def _is_widget(kind: Any) -> bool:
    return isinstance(kind, list) or kind in ("INT", "BOOLEAN")


def _run(document: dict[str, Any], image: Any) -> dict[int, Any]:
    """Run a workflow as ComfyUI would; returns what every node answered, or was shown."""
    links = {link[0]: link for link in document["links"]}
    waiting = [node for node in document["nodes"] if node["type"] != "MarkdownNote"]
    done: dict[int, Any] = {}
    while waiting:
        node = next(
            n
            for n in reversed(waiting)
            if all(links[entry["link"]][1] in done for entry in n["inputs"])
        )
        values = {
            entry["name"]: done[links[entry["link"]][1]][links[entry["link"]][2]]
            for entry in node["inputs"]
        }
        waiting.remove(node)
        if node["type"] == "LoadImage":
            done[node["id"]] = image, None
        elif node["type"] in CORE:
            done[node["id"]] = tuple(values.values())
        else:
            cls = NODE_CLASS_MAPPINGS[node["type"]]
            names = [name for name, kind in _accepts(node).items() if _is_widget(kind)]
            values |= dict(zip(names, node["widgets_values"], strict=True))
            if "hidden" in cls.INPUT_TYPES():
                values["unique_id"] = str(node["id"])
            done[node["id"]] = getattr(cls(), cls.FUNCTION)(**values)
    return done


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_is_made_of_nodes_that_exist_and_links_that_fit(name: str) -> None:
    document = workflow(name)
    boxes = {node["id"]: node for node in document["nodes"]}
    assert {node["type"] for node in boxes.values()} <= {*NODE_CLASS_MAPPINGS, *CORE}
    assert document["last_node_id"] == max(boxes)
    assert document["last_link_id"] == max(link[0] for link in document["links"])
    for number, source, output, target, entry, kind in document["links"]:
        start, end = boxes[source]["outputs"][output], boxes[target]["inputs"][entry]
        assert number in start["links"]
        assert end["link"] == number
        assert start["type"] == kind
        assert end["type"] == "*" or set(kind.split(",")) & set(end["type"].split(","))
    named = [number for n in boxes.values() for o in n["outputs"] for number in o["links"]]
    assert sorted(named) == sorted(link[0] for link in document["links"])


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_has_the_inputs_and_outputs_of_its_nodes(name: str) -> None:
    for node in workflow(name)["nodes"]:
        accepts = _accepts(node)
        sockets = {entry["name"]: entry["type"] for entry in node["inputs"]}
        assert sockets == {k: v for k, v in accepts.items() if not _is_widget(v)}
        if node["type"] in NODE_CLASS_MAPPINGS:
            cls = NODE_CLASS_MAPPINGS[node["type"]]
            outputs = [(entry["name"], entry["type"]) for entry in node["outputs"]]
            assert outputs == list(zip(cls.RETURN_NAMES, cls.RETURN_TYPES, strict=True))
            assert len(node["widgets_values"]) == sum(map(_is_widget, accepts.values()))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_the_boxes_of_a_workflow_do_not_lie_on_each_other(name: str) -> None:
    boxes = [(*node["pos"], *node["size"]) for node in workflow(name)["nodes"]]
    for index, (x, y, width, height) in enumerate(boxes):
        for left, top, w, h in boxes[index + 1 :]:
            assert x + width <= left or left + w <= x or y + height <= top or top + h <= y


def test_the_small_network_makes_a_picture_of_a_picture() -> None:
    image = picture(2, 16, 12, 3)
    shown = _run(workflow("small_network_workflow.json"), image)[6][0]
    assert (shown.shape, shown.dtype) == (image.shape, torch.float32)
    assert shown.min() >= 0
    assert shown.max() <= 1
    again = _run(workflow("small_network_workflow.json"), image)[6][0]
    assert torch.equal(shown, again)
    torch.manual_seed(0)
    first = torch.nn.Conv2d(3, 8, 3, padding=1)
    torch.manual_seed(0)
    second = torch.nn.Linear(8, 3)
    with torch.no_grad():
        hidden = first(image.permute(0, 3, 1, 2)).relu().permute(0, 2, 3, 1)
        torch.testing.assert_close(shown, second(hidden).sigmoid(), rtol=1e-5, atol=1e-6)


def test_the_losses_of_the_workflow_are_numbers() -> None:
    image = picture(1, 8, 8, 3)
    done = _run(workflow("loss_workflow.json"), image)
    made = done[2][0]
    assert done[5][0] == pytest.approx(((made - image) ** 2).mean().item(), rel=1e-5)
    assert done[6][0] == pytest.approx((made - image).abs().mean().item(), rel=1e-5)
    assert 0 < done[5][0] < done[6][0]


# ---- without torch and ComfyUI


def test_the_nodes_work_where_torch_cannot_be_imported() -> None:
    program = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "comfy"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import numpy
from holdfast.nodes import NODE_CLASS_MAPPINGS as nodes
assert "numpy" in sys.modules and "holdfast.compute.tensors.custom_tensor" not in sys.modules
image = numpy.random.default_rng(0).random((1, 4, 4, 3), numpy.float32)
(out,) = nodes["CustomPyTorchConv2D"]().forward(image, 3, 8)
(out,) = nodes["CustomPyTorchActivation"]().activate(out, "relu")
(out,) = nodes["CustomPyTorchLinear"]().forward(out, 8, 3, True)
(out,) = nodes["CustomPyTorchActivation"]().activate(out, "sigmoid")
(out,) = nodes["CustomPyTorchTensorOps"]().compute(out, image, "multiply")
(loss,) = nodes["CustomPyTorchLoss"]().compute_loss(out, image, "mae")
print(type(out).__name__, out.shape, type(loss).__name__, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode() == "CustomTensor (1, 4, 4, 3) float False\n"
