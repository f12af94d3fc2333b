"""Ports: what they say, and loading from files straight into shards."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import jax
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from jax import export
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.torch import load_file, save_file

from holdfast.base.errors import BadInput, NotFound
from holdfast.residency.predict.shadow import on_meta, shadow
from holdfast.xla import tiny
from holdfast.xla.cluster.mesh import make_mesh
from holdfast.xla.module.calls import ModuleCall
from holdfast.xla.port import PORTS, Port
from holdfast.xla.sampling import Conditioning, make_step, table_of
from holdfast.xla.sharding.rules import rules_for
from holdfast.xla.sharding.shards import bytes_on, report

FLUX = "diffusers:FluxTransformer2DModel"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny FLUX in several files, as large models come."""
    path = tmp_path_factory.mktemp("flux") / "transformer"
    tiny.make(FLUX).module.save_pretrained(path, max_shard_size="200KB")
    assert len(list(path.glob("*.safetensors"))) > 1
    return path


@pytest.mark.parametrize("name", PORTS)
def test_a_port_takes_at_most_25_lines(name: str) -> None:
    where, _, variable = PORTS.entry(name).target.partition(":")
    tree = ast.parse(inspect.getsource(importlib.import_module(where)))
    (port,) = (
        one
        for one in tree.body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == variable
    )
    assert port.end_lineno is not None
    assert port.end_lineno - port.lineno < 25


@pytest.mark.parametrize("name", PORTS)
def test_its_classes_exist_and_are_compared_with_torch(name: str) -> None:
    port = PORTS[name]
    for one in (port, *port.parts.values()):
        assert tiny.class_of(one.network)
        assert one.network in tiny.tiny_models()


def test_an_unknown_port_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(NotFound) as caught:
        PORTS["flx"]
    assert "flux" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "config", "most"), [("flux", {"guidance_embeds": True}, 1.06), ("wan21", {}, 1.12)]
)
def test_eight_devices_hold_an_eighth_each_at_real_shapes(
    name: str, config: dict[str, bool], most: float
) -> None:
    module = PORTS[name].build(**config)
    found = report(rules_for(module, PORTS[name].rules, size=8), torch.bfloat16)
    assert found.total_bytes > 23e9
    assert found.ratio <= most


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 8])
def test_weights_are_read_into_their_shards(folder: Path, devices: int) -> None:
    made = tiny.make(FLUX)
    told: list[tuple[int, int]] = []
    mesh = make_mesh(jax.devices()[:devices])
    placed = PORTS["flux"].load(
        folder, mesh=mesh, precision="fp32", progress=lambda *at: told.append(at)
    )
    with torch.no_grad():
        wanted = made(**made.inputs())[0]
    found = placed(**made.inputs())[0]
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert bytes_on(jax.devices()[0], placed.weights) == placed.report.device_bytes
    assert told[-1][0] == told[-1][1] == placed.report.total_bytes
    assert all(weight.is_meta for weight in placed.module.parameters())


def test_half_precision_halves_the_bytes(folder: Path) -> None:
    mesh = make_mesh(jax.devices()[:1])
    full, half = (PORTS["flux"].load(folder, mesh=mesh, precision=p) for p in ("fp32", "bf16"))
    assert half.report.total_bytes < 0.6 * full.report.total_bytes


def test_a_weight_that_is_missing_is_told_before_anything_is_placed(
    folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    file = sorted(copy.glob("*.safetensors"))[0]
    weights = load_file(file)
    name = sorted(weights)[0]
    shape = list(weights.pop(name).shape)
    save_file(weights, file)
    with pytest.raises(BadInput) as caught:
        PORTS["flux"].load(copy)
    assert str(caught.value) == (
        f"cannot load 'flux' from {str(copy)!r}: {name!r} is missing\n"
        f"  expected: a weight of shape {shape}, as the configuration says\n"
        "  try: copy or download the whole model again"
    )


def test_broken_files_are_told(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = tmp_path / "config.json"
    config.write_text("garbage")
    with pytest.raises(BadInput) as caught:
        PORTS["flux"].load(tmp_path)
    assert str(caught.value) == (
        f"cannot load 'flux' from {str(tmp_path)!r}: its config.json does not make a "
        "FluxTransformer2DModel: OSError: It looks like the config file at "
        f"{str(config)!r} is not a valid JSON file.\n"
        "  expected: the configuration of a FluxTransformer2DModel\n"
        "  try: the port of that model (holdfast port list), or copy the whole model again"
    )
    weights = sorted(tmp_path.glob("*.safetensors"))[0]
    weights.write_bytes(b"garbage")
    with pytest.raises(BadInput) as caught:
        PORTS["flux"].load(tmp_path)
    assert str(caught.value) == (
        f"cannot read weights {str(weights)!r}: it is not a safetensors file\n"
        "  expected: a file that begins with a safetensors header\n"
        "  try: convert the file with the safetensors package, or download it again"
    )


def test_a_folder_without_a_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        PORTS["flux"].load(tmp_path)
    assert str(caught.value) == (
        f"cannot load 'flux' from {str(tmp_path)!r}: it has no config.json or no "
        ".safetensors file\n"
        "  expected: the folder of one network, such as FLUX.1-dev/transformer"
    )


def test_an_unknown_precision_is_refused(folder: Path) -> None:
    with pytest.raises(BadInput) as caught:
        PORTS["flux"].load(folder, precision="int3")
    assert str(caught.value) == ("unknown precision 'int3'\n  expected: one of fp32, bf16, fp16")


def test_an_operator_can_be_replaced_for_one_port_alone() -> None:
    linear = torch.nn.Linear(4, 4).requires_grad_(False)
    x = torch.randn(2, 4)
    port = Port(
        name="twice",
        network="torch.nn:Linear",
        ops={"torch.nn.functional.linear": lambda x, weight, bias=None: x * 2},
    )
    mesh = make_mesh(jax.devices()[:1])
    assert torch.equal(port.place(linear, mesh=mesh)(x), x * 2)
    plain = Port(name="plain", network="torch.nn:Linear").place(linear, mesh=mesh)
    assert torch.allclose(plain(x), linear(x))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 8])
def test_a_step_of_flux_is_compiled_for_tpus_from_here(devices: int) -> None:
    """At its real size, without weights: 4096 tokens of picture, 512 of text."""
    half = on_meta(lambda _, one: torch.bfloat16 if one.is_floating_point() else one.dtype)
    module = shadow(PORTS["flux"].build(guidance_embeds=True), half)
    mesh = make_mesh(jax.devices()[:devices])
    call = ModuleCall(module, scan=PORTS["flux"].scan, platform="tpu", mesh=mesh)
    rules = rules_for(module, mesh=mesh)

    def given(*shape: int, spec: tuple[str | None, ...] = ()) -> jax.ShapeDtypeStruct:
        place = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, jax.numpy.bfloat16, sharding=place)

    weights = {
        name: given(
            *slot.shape, spec=((None,) * slot.is_stacked) + tuple(rules[slot.parts[0]].spec)
        )
        for name, slot in call.slots.items()
    }
    words = {
        "encoder_hidden_states": given(1, 512, 4096),
        "pooled_projections": given(1, 768),
        "guidance": given(1),
        "img_ids": given(4096, 3),
        "txt_ids": given(512, 3),
    }
    step = make_step(
        lambda weights, inputs: call(weights, {**inputs, "return_dict": False})[0],
        None,
        latents_name="hidden_states",
        time_name="timestep",
        time_scale=1e-3,
    )
    table = table_of(FlowMatchEulerDiscreteScheduler(), 4)
    arguments = (weights, (given(1, 4096, 64), ()), table.row(0), Conditioning(words))
    checks = [export.DisabledSafetyCheck.custom_call("ALL")]
    jitted = jax.jit(step, donate_argnums=1)
    program = export.export(jitted, platforms=["tpu"], disabled_checks=checks)(*arguments)
    assert program.mlir_module().count("tpu_custom_call") >= 1
    assert program.nr_devices == devices
    assert [one.shape for one in program.out_avals] == [(1, 4096, 64)]
