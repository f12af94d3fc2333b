from __future__ import annotations

from holdfast.topology import Cpu, Gpu, Link, Node, OpenclDevice, Topology, TorchDevice
from holdfast.topology.merge import merge

A, B = "0000:01:00.0", "0000:41:00.0"
BASE = Topology(nodes=(Node(id=0, cpus=(0,)), Node(id=1, cpus=(1,))), cpus=(Cpu(id=0), Cpu(id=1)))


def test_the_same_card_seen_by_four_probes_is_one_card() -> None:
    machine = merge(
        [
            BASE,
            Topology(gpus=(Gpu(id=-1, pci_address=A, vendor="NVIDIA", numa_node=1),)),
            Topology(gpus=(Gpu(id=-1, pci_address=A, name="H200", memory_bytes=7, uuid="u"),)),
            Topology(
                opencl=(OpenclDevice(id="opencl:0:0", platform="p", name="n", pci_address=A),)
            ),
            Topology(torch=(TorchDevice(id="cuda:0", backend="cuda", pci_address=A),)),
        ]
    )
    assert machine.gpus == (
        Gpu(
            id=0,
            pci_address=A,
            vendor="NVIDIA",
            name="H200",
            uuid="u",
            memory_bytes=7,
            numa_node=1,
            opencl="opencl:0:0",
            torch="cuda:0",
        ),
    )


def test_where_two_probes_know_a_fact_the_first_is_believed() -> None:
    machine = merge([Topology(hostname="a", kernel="1"), Topology(hostname="b", system="s")])
    assert (machine.hostname, machine.kernel, machine.system) == ("a", "1", "s")


def test_the_near_node_stays_unknown_where_there_is_a_choice() -> None:
    card = Topology(gpus=(Gpu(id=-1, pci_address=A),))
    assert merge([BASE, card]).gpus[0].numa_node is None
    alone = Topology(nodes=(Node(id=3, cpus=(0,)), Node(id=4)))
    assert merge([alone, card]).gpus[0].numa_node == 3


def test_a_device_without_an_address_is_joined_only_if_it_can_be_no_other_card() -> None:
    xpu = Topology(torch=(TorchDevice(id="xpu:0", backend="xpu", name="Arc"),))
    one = Topology(gpus=(Gpu(id=-1, pci_address=A, vendor="Intel"),))
    two = Topology(gpus=(*one.gpus, Gpu(id=-1, pci_address=B, vendor="Intel")))
    other = Topology(gpus=(Gpu(id=-1, pci_address=A, vendor="AMD"),))
    assert merge([BASE, one, xpu]).gpus[0].torch == "xpu:0"
    assert merge([BASE, one, xpu]).gpus[0].name == "Arc"
    assert [g.torch for g in merge([BASE, two, xpu]).gpus] == [None, None]
    assert merge([BASE, other, xpu]).gpus[0].torch is None


def test_the_cpu_as_an_opencl_device_is_no_card() -> None:
    cpu = OpenclDevice(id="opencl:0:0", platform="Intel(R) OpenCL", name="Intel CPU", kind="cpu")
    card = Topology(gpus=(Gpu(id=-1, pci_address=A, vendor="Intel"),))
    assert merge([BASE, card, Topology(opencl=(cpu,))]).gpus[0].opencl is None


def test_nvlink_is_preferred_to_the_way_over_pcie_and_named_by_gpu_number() -> None:
    cards = Topology(
        gpus=(Gpu(id=-1, pci_address=B), Gpu(id=-1, pci_address=A)),
        links=(Link(source=f"pci:{A}", target=f"pci:{B}", kind="pcie", via="switch"),),
    )
    nvlink = Topology(
        links=(Link(source=f"pci:{A}", target=f"pci:{B}", kind="nvlink", bandwidth_gb_s=450.0),)
    )
    machine = merge([BASE, cards, nvlink])
    assert [gpu.pci_address for gpu in machine.gpus] == [A, B]
    peers = [link for link in machine.links if link.source.startswith("gpu")]
    assert peers == [Link(source="gpu:0", target="gpu:1", kind="nvlink", bandwidth_gb_s=450.0)]


def test_apples_gpu_is_known_to_torch_alone() -> None:
    mps = TorchDevice(id="mps", backend="mps", name="Apple GPU", memory_bytes=10)
    mac = Topology(nodes=(Node(id=0, cpus=(0,)),))
    [gpu] = merge([mac, Topology(torch=(mps,))]).gpus
    assert (gpu.vendor, gpu.kind, gpu.torch, gpu.numa_node) == ("Apple", "integrated", "mps", 0)
    assert merge([mac, Topology(torch=(mps,))]).links[0].kind == "fabric"


def test_nothing_known_is_an_empty_machine() -> None:
    assert merge([]) == Topology()
