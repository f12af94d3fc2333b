"""Devices in one or two rows, and the warning when only the CPU is there."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

jax = pytest.importorskip("jax")

from holdfast.base.errors import Absent, BadInput  # noqa: E402
from holdfast.xla.cluster.mesh import make_mesh  # noqa: E402

pytestmark = pytest.mark.xla


def test_all_devices_stand_along_tp() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mesh = make_mesh()
    assert dict(mesh.shape) == {"tp": len(jax.devices())}
    assert list(mesh.devices.flat) == jax.devices()


def test_a_shape_gives_two_axes() -> None:
    mesh = make_mesh(shape={"dp": 2, "tp": 4})
    assert dict(mesh.shape) == {"dp": 2, "tp": 4}
    assert mesh.axis_names == ("dp", "tp")


def test_the_last_of_several_axes_gets_all_devices() -> None:
    assert dict(make_mesh(axes=("dp", "tp")).shape) == {"dp": 1, "tp": 8}
    assert dict(make_mesh(axes="model").shape) == {"model": 8}


def test_devices_may_be_given_or_named_by_their_platform() -> None:
    assert list(make_mesh(jax.devices()[2:5]).devices.flat) == jax.devices()[2:5]
    assert dict(make_mesh("cpu").shape) == {"tp": 8}


def test_a_platform_that_is_not_here_is_an_error() -> None:
    with pytest.raises(Absent) as caught:
        make_mesh("tpu")
    assert caught.value.what.startswith("JAX finds no device of the platform 'tpu': ")
    assert caught.value.expected == "one that it can use here: cpu"


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (
            {"dp": 2, "tp": 3},
            "a mesh of dp=2 x tp=3 does not fit 8 devices\n"
            "  expected: sizes whose product is 8\n"
            "  try: shape={'dp': 2, 'tp': 4}",
        ),
        (
            {"dp": 3, "tp": 2},
            "a mesh of dp=3 x tp=2 does not fit 8 devices\n"
            "  expected: sizes whose product is 8\n"
            "  try: devices=jax.devices()[:6]",
        ),
        (
            {"dp": 3, "tp": 4},
            "a mesh of dp=3 x tp=4 does not fit 8 devices\n  expected: sizes whose product is 8",
        ),
        (
            {"dp": -1, "tp": -8},
            "a mesh of dp=-1 x tp=-8 does not fit 8 devices\n  expected: sizes whose product is 8",
        ),
        ({}, "a mesh of no axis does not fit 8 devices\n  expected: sizes whose product is 8"),
    ],
)
def test_a_shape_that_does_not_take_all_devices_is_an_error(
    shape: dict[str, int], text: str
) -> None:
    with pytest.raises(BadInput) as caught:
        make_mesh(shape=shape)
    assert str(caught.value) == text


def test_what_contradicts_itself_is_an_error() -> None:
    with pytest.raises(BadInput) as caught:
        make_mesh(axes="tp", shape={"tp": 8})
    assert str(caught.value) == (
        "a mesh was given both axes and a shape\n"
        '  expected: axes=("dp", "tp"), or shape={"dp": 2, "tp": 4}, which names them too'
    )
    with pytest.raises(BadInput) as caught:
        make_mesh(axes=("tp", "tp"))
    assert str(caught.value) == (
        "a mesh cannot have the axes ['tp', 'tp']\n"
        '  expected: different names such as "dp", "tp"'
    )


@pytest.mark.parametrize(
    ("devices", "what"),
    [([], "a mesh needs a device"), ([0, 0], "a mesh was given a device twice")],
)
def test_no_device_and_one_twice_are_errors(devices: list[int], what: str) -> None:
    with pytest.raises(BadInput) as caught:
        make_mesh([jax.devices()[one] for one in devices])
    assert str(caught.value) == (
        f"{what}\n  expected: different devices, such as jax.devices()[:4]"
    )


def test_the_cpu_is_warned_of_unless_it_is_meant() -> None:
    """JAX_PLATFORMS is set for this process; another one finds out by itself."""
    if jax.devices()[0].platform != "cpu":
        pytest.skip("there is an accelerator")
    script = (
        "import warnings; from holdfast.xla.cluster.mesh import make_mesh\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always'); make_mesh(); make_mesh('cpu')\n"
        "print(*[f'{one.category.__name__}: {one.message}' for one in caught])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env=environment | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    )
    assert ran.stdout == (
        "CpuFallback: JAX finds no TPU and no GPU: models run on 2 devices of the CPU, slowly\n"
        "  try: pip install 'jax[tpu]' or 'jax[cuda13]' on a machine that has one; "
        "JAX_PLATFORMS=cpu says that the CPU is meant\n"
    )
