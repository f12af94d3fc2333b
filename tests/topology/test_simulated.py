from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.config import Config
from holdfast.base.errors import BadInput, Unsupported
from holdfast.topology import Link, Topology, discover, measure, simulate


def test_the_example_makes_two_nodes_and_a_far_one() -> None:
    machine = simulate("2x16GB,1x64GB:far")
    assert machine.simulated
    assert [node.total_bytes for node in machine.nodes] == [16 * 10**9, 16 * 10**9, 64 * 10**9]
    assert [node.cpus for node in machine.nodes] == [(0, 1, 2, 3), (4, 5, 6, 7), ()]
    assert [node.memory_kind for node in machine.nodes] == ["dram", "dram", "cxl"]
    assert machine.nodes[0].distances == (10, 20, 30)


def test_words_give_cpus_and_gpus() -> None:
    machine = discover(config=Config.load({}, simulate="2x32GiB:cpus=8:gpu=24GB"))
    assert [len(node.cpus) for node in machine.nodes] == [8, 8]
    assert [(gpu.numa_node, gpu.memory_bytes) for gpu in machine.gpus] == [
        (0, 24 * 10**9),
        (1, 24 * 10**9),
    ]
    link = Link(source="node:0", target="gpu:0", kind="pcie", lanes=16, bandwidth_gb_s=31.51)
    assert link in machine.links


def test_a_simulated_machine_says_so_everywhere() -> None:
    machine = discover(config=Config.load({}, simulate="1x1GB"))
    assert machine.simulated
    assert machine.probes[0].reason == "made up from '1x1GB'"
    assert '"simulated": true' in machine.to_json()


def test_a_simulated_machine_cannot_be_measured() -> None:
    with pytest.raises(Unsupported) as caught:
        measure(simulate("1x1GB"), config=Config.load({}, probes="linux"))
    assert str(caught.value) == (
        "cannot measure a simulated machine: only the machine this runs on can be timed\n"
        "  expected: the result of topology.discover() on this machine"
    )


EXPECTED = (
    "\n  expected: groups COUNTxSIZE[:far][:cpus=N][:gpu=SIZE] separated by commas"
    "\n  try: 2x16GB,1x64GB:far"
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2xfoo", "cannot read '2xfoo' in the simulated machine '2xfoo': 'foo' is not a size"),
        ("", "cannot read '' in the simulated machine '': it has no size"),
        ("1x1GB,,", "cannot read '' in the simulated machine '1x1GB,,': it has no size"),
        (
            "0x1GB",
            "cannot read '0x1GB' in the simulated machine '0x1GB': a group has at least one node",
        ),
        (
            "1x0GB",
            "cannot read '1x0GB' in the simulated machine '1x0GB': a size cannot be zero",
        ),
        (
            "1x1GB:near",
            "cannot read '1x1GB:near' in the simulated machine '1x1GB:near': unknown option 'near'",
        ),
        (
            "1x1GB:gpu=big",
            "cannot read '1x1GB:gpu=big' in the simulated machine '1x1GB:gpu=big': "
            "'big' is not a size",
        ),
    ],
)
def test_text_that_is_no_machine_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadInput) as caught:
        simulate(text)
    assert str(caught.value) == why + EXPECTED


def test_a_machine_too_large_to_look_at_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        simulate("100000000x1GB")
    assert str(caught.value) == (
        "the simulated machine '100000000x1GB' is too large\n"
        "  expected: at most 256 nodes and 4096 CPUs"
    )


@given(st.text(alphabet="0123456789xGBMi:,=farcpusgpu% ", max_size=30))
def test_any_text_gives_a_machine_or_a_clear_error(text: str) -> None:
    try:
        machine = simulate(text)
    except BadInput as exc:
        machine = None
        shown = str(exc)
    assert "expected:" in shown if machine is None else Topology.from_json(machine.to_json())
