"""Two real processes with four virtual devices each are one cluster of eight; what goes wrong."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

import numpy as np  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from holdfast.base.errors import Absent, BadInput, Misuse, OutOfTime  # noqa: E402
from holdfast.xla.cluster import hosts, rendezvous  # noqa: E402
from holdfast.xla.cluster.mesh import make_mesh  # noqa: E402

SECONDS = 240  # after which a process of a test is taken to hang; the machine may be busy
JOIN = """
import os, sys, time
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from holdfast.xla.cluster import hosts
from holdfast.xla.cluster.mesh import make_mesh
"""
CHAIN = """
def chain(mesh):
    split = NamedSharding(mesh, PartitionSpec("tp", None))
    values = np.random.default_rng(0).standard_normal((5, 64, 64), dtype=np.float32) / 8
    first, *rest = (hosts.from_host(value, split) for value in values)
    def product(x, rest):
        for other in rest:
            x = x @ other.T
        return x
    return jax.jit(product, out_shardings=split)(first, rest)
"""
FLUX = """
def flux(mesh):
    from holdfast.xla import tiny
    from holdfast.xla.arrays import to_numpy
    from holdfast.xla.module.calls import ModuleCall
    from holdfast.xla.sharding.rules import rules_for
    from holdfast.xla.sharding.shards import place_all
    made = tiny.make("diffusers:FluxTransformer2DModel")
    call = ModuleCall(made.module)
    weights = place_all(call.weights, rules_for(made.module, mesh=mesh), mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())
    inputs = made.inputs()
    traced = {
        name: hosts.from_host(to_numpy(inputs.pop(name)), everywhere)
        for name in ("hidden_states", "encoder_hidden_states", "timestep")
    }
    step = jax.jit(lambda weights, traced: call(weights, inputs | traced)[0])
    return step(weights, traced)
"""
DRAW = """
with hosts.joined(sys.argv[1], timeout_s=120) as here:
    assert (here.count, here.local_devices, here.global_devices) == (2, 4, 8)
    assert hosts.is_first() == here.is_first == (here.index == 0)
    assert hosts.join(sys.argv[1]) is hosts.join() is here
    try:
        hosts.join("auto")
    except Exception as exc:
        print(exc, flush=True)  # before Gloo writes, from several threads at once
    array = {what}(make_mesh())
    assert not array.is_fully_addressable
    np.save(f"{{sys.argv[2]}}/{{here.index}}.npy", hosts.whole(array))
"""
FAIL = """
def step(x):
    return float(jax.jit(lambda x: (x @ x.T).sum())(x))
with hosts.joined(sys.argv[1], timeout_s=40, heartbeat_s=3) as here:
    split = NamedSharding(make_mesh(), PartitionSpec("tp"))
    x = hosts.from_host(np.ones((8, 8), np.float32), split)
    print("begun", step(x), flush=True)
    if here.index == {who}:
        {how}
    while True:
        step(x)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return door.getsockname()[1]


def start(script: str, *arguments: str, devices: int = 4) -> subprocess.Popen[str]:
    known = {name: value for name, value in os.environ.items() if name != hosts.VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env=known
        | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_two(script: str, *arguments: str) -> list[subprocess.Popen[str]]:
    port = free_port()
    return [start(script, f"127.0.0.1:{port},{index}/2", *arguments) for index in range(2)]


def end(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Status, output and errors of each; one that hangs is killed and fails the test."""
    try:
        told = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        (process.returncode, out, err) for process, (out, err) in zip(processes, told, strict=True)
    ]


def drawn(script: str, what: str, folder: Path) -> np.ndarray:
    """What both processes got, which has to be the same."""
    ended = end(start_two(JOIN + script + DRAW.format(what=what), str(folder)))
    assert [status for status, _, _ in ended] == [0, 0], ended
    for index, (_, out, _) in enumerate(ended):
        address = re.search(r"127\.0\.0\.1:\d+", out)
        assert address is not None
        assert out.startswith(
            f"cannot join 'auto': this process has joined '{address[0]},{index}/2'\n"
            "  expected: one cluster for a process\n"
        )
    first, second = (np.load(folder / f"{index}.npy") for index in range(2))
    np.testing.assert_array_equal(first, second)
    return first


def alone(script: str, what: str) -> np.ndarray:
    """The same on one device of this process."""
    here = {"jax": jax, "np": np, "hosts": hosts}
    here |= {"NamedSharding": NamedSharding, "PartitionSpec": PartitionSpec}
    exec(script, here)
    return hosts.whole(here[what](make_mesh(jax.devices()[:1])))


def furthest(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.slow
def test_two_processes_multiply_as_one_does(tmp_path: Path) -> None:
    assert furthest(drawn(CHAIN, "chain", tmp_path), alone(CHAIN, "chain")) < 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")  # torchax asks for float64
def test_two_processes_run_flux_as_one_does(tmp_path: Path) -> None:
    assert furthest(drawn(FLUX, "flux", tmp_path), alone(FLUX, "flux")) < 1e-5


@pytest.mark.parametrize(
    ("who", "how", "status"),
    [
        (0, "raise ValueError('lost')", 1),
        (1, "raise ValueError('lost')", 1),
        pytest.param(1, "raise KeyboardInterrupt", 130, marks=pytest.mark.slow),
        pytest.param(1, "sys.exit(4)", 4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_process_that_fails_takes_the_others_with_it_in_seconds(
    who: int, how: str, status: int
) -> None:
    began = time.monotonic()
    ended = end(start_two(JOIN + FAIL.format(who=who, how=how)))
    assert time.monotonic() - began < 150  # half of what jax would wait
    assert ended[who][0] == status
    assert ended[1 - who][0] in (1, -signal.SIGABRT)  # Gloo tells it, or jax ends it
    for _, out, _ in ended:
        assert "begun 512.0" in out
    if status == 1:
        assert "ValueError: lost" in ended[who][2]


@pytest.mark.slow
def test_a_script_that_only_joins_and_fails_is_gone_as_fast() -> None:
    script = (
        "here = hosts.join(sys.argv[1], timeout_s=40)\n"
        "if here.index == 1: raise ValueError('lost')\n"
        "time.sleep(1)\nhosts.leave()\n"
    )
    first, second = start_two(JOIN + script)
    try:
        _, err = second.communicate(timeout=120)
    finally:
        first.kill()
        first.communicate()
    assert second.returncode == 1
    assert err.endswith("ValueError: lost\n")


@pytest.mark.slow
def test_a_process_that_stands_still_ends_the_others_after_the_heartbeat() -> None:
    how = "os.kill(os.getpid(), 19)"
    first, second = start_two(JOIN + FAIL.format(who=1, how=how))
    began = time.monotonic()
    try:
        _, err = first.communicate(timeout=SECONDS)
    finally:
        second.kill()
        second.communicate()
    assert time.monotonic() - began < 90  # jax would wait for 100 s
    assert first.returncode == -signal.SIGABRT
    assert "heartbeat" in err


def test_a_process_without_hosts_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(hosts.VARIABLE, raising=False)
    with hosts.joined() as here:
        assert here == hosts.Hosts(0, 1, None, jax.device_count(), jax.device_count())
        assert here.is_first
        assert hosts.is_first()
    hosts.leave()


def test_an_array_of_this_process_comes_and_goes_without_others() -> None:
    value = np.arange(32, dtype=np.float32).reshape(8, 4)
    split = NamedSharding(make_mesh(jax.devices()[:8]), PartitionSpec("tp"))
    array = hosts.from_host(value, split)
    assert [shard.data.shape for shard in array.addressable_shards] == [(1, 4)] * 8
    np.testing.assert_array_equal(hosts.whole(array), value)
    np.testing.assert_array_equal(hosts.whole(value), value)


def test_joining_after_jax_has_started_is_refused() -> None:
    jax.devices()
    with pytest.raises(Misuse) as caught:
        hosts.join("127.0.0.1:1234,0/2")
    assert str(caught.value) == (
        "cannot join '127.0.0.1:1234,0/2': jax has started already, on the devices of this host "
        "alone\n"
        "  expected: join() before anything that asks for a device or computes\n"
        "  try: call it first, or set HOLDFAST_HOSTS and let holdfast do so"
    )


@pytest.mark.parametrize(
    "text",
    ["10.0.0.1", "10.0.0.1:1234", "10.0.0.1:1234,2/2", "10.0.0.1:99999,0/2", ":1,0/1", "automatic"],
)
def test_hosts_that_cannot_be_read_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hosts.VARIABLE, text)
    with pytest.raises(BadInput) as caught:
        hosts.join()
    assert str(caught.value) == (
        f"cannot read {text!r} as hosts\n"
        '  expected: "auto", or HOST:PORT,INDEX/COUNT such as "10.0.0.1:1234,0/2" for the first of '
        "two"
    )


def test_an_address_may_be_a_name_or_of_version_6() -> None:
    assert rendezvous.HostAddress.parse("tpu-0.local:80,1/4") == rendezvous.HostAddress(
        "tpu-0.local", 80, 1, 4
    )
    assert rendezvous.HostAddress.parse(" [::1]:80, 1/4 ") == rendezvous.HostAddress(
        "[::1]", 80, 1, 4
    )


def test_no_cluster_around_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_refuse_late", lambda _: None)  # jax has started in the tests
    monkeypatch.setattr(hosts.jax.distributed, "initialize", _finds_nothing)
    with pytest.raises(Absent) as caught:
        hosts.join("auto")
    assert str(caught.value) == (
        "found no cluster around this process: coordinator_address should be defined.\n"
        "  expected: a TPU pod, Slurm, Open MPI or Kubernetes\n"
        '  try: name the hosts by hand: "10.0.0.1:1234,0/2" on the first of two, '
        '"10.0.0.1:1234,1/2" on the second'
    )


def _finds_nothing(**_: object) -> None:
    raise ValueError("coordinator_address should be defined.")


@pytest.mark.slow
def test_jax_says_that_it_finds_no_cluster_as_the_test_above_has_it() -> None:
    ((status, _, err),) = end([start(JOIN + "hosts.join('auto')")])
    assert status == 1
    assert "found no cluster around this process: coordinator_address should be defined." in err


def met(places: list[rendezvous.HostAddress], timeout_s: float) -> list[str]:
    """What becomes of hosts that meet in threads, in their order: "there" or an error."""
    said = ["" for _ in places]

    def go(number: int, place: rendezvous.HostAddress) -> None:
        try:
            rendezvous.meet(place, timeout_s)
            said[number] = "there"
        except (OutOfTime, BadInput) as exc:
            said[number] = str(exc)

    threads = [threading.Thread(target=go, args=pair) for pair in enumerate(places)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    return said


def test_hosts_meet_in_any_order() -> None:
    port = free_port()
    places = [rendezvous.HostAddress("127.0.0.1", port, index, 4) for index in (3, 1, 0, 2)]
    assert met(places, 240) == ["there"] * 4
    assert met([rendezvous.HostAddress("127.0.0.1", port, 0, 1)], 240) == ["there"]


def test_a_first_host_that_does_not_answer_is_said() -> None:
    port = free_port()
    assert met([rendezvous.HostAddress("127.0.0.1", port, 1, 2)], 0.3) == [
        f"the first host did not answer at 127.0.0.1:{port} within 0.3 s: Connection refused\n"
        f"  expected: a process that joined with 127.0.0.1:{port},0/2\n"
        "  try: look whether it runs, at its output, at the firewall, at the address"
    ]


def test_hosts_that_do_not_come_are_named_to_all_that_did() -> None:
    port = free_port()
    what = f"2 of 4 hosts did not come to 127.0.0.1:{port} within 0.5 s: 1, 3"
    first, other = met(
        [rendezvous.HostAddress("127.0.0.1", port, index, 4) for index in (0, 2)], 0.5
    )
    assert first == (
        f"{what}\n"
        "  expected: 4 processes with the same address, numbered 0 to 3\n"
        "  try: look at the output of those hosts, at the firewall, at the address they were given"
    )
    assert other.startswith("the first host")  # says so, or had gone a moment before


def test_a_host_of_another_count_is_turned_away_and_the_others_meet() -> None:
    port = free_port()
    counts = [(0, 2), (1, 3), (1, 2)]
    places = [rendezvous.HostAddress("127.0.0.1", port, *pair) for pair in counts]
    first, wrong, right = met(places, 5)
    assert (first, right) == ("there", "there")
    assert wrong == (
        "the first host says: this is host 1/3, but the first of them is 0/2\n"
        "  expected: HOST:PORT,INDEX/COUNT with one address, one count and a number for each"
    )


def test_the_last_to_come_as_a_host_is_that_host() -> None:
    port = free_port()
    places = [rendezvous.HostAddress("127.0.0.1", port, index, 3) for index in (0, 1, 1, 2)]
    first, old, new, other = met(places, 5)
    assert (first, new, other) == ("there",) * 3
    assert old.startswith("the first host says: another process has joined as host 1/3\n")


def test_another_version_of_jax_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    place = rendezvous.HostAddress("127.0.0.1", 1, 0, 2)
    here = jax.__version__
    assert (
        rendezvous._mismatch(place, 1, 2, "0.1")
        == f"host 1/2 has jax 0.1, but the first has {here}"
    )
    assert rendezvous._mismatch(place, 0, 2, here) == "there is no host 0/2 to come"
    assert rendezvous._mismatch(place, 1, 2, here) is None


def test_strangers_at_the_door_are_ignored() -> None:
    port = free_port()

    def knock() -> None:
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"", b"x" * 5000):
            with contextlib.suppress(ConnectionError), connected(port) as line:
                line.sendall(said)
                knocked.append(said)

    knocked: list[bytes] = []
    stranger = threading.Thread(target=knock)
    stranger.start()
    assert met([rendezvous.HostAddress("127.0.0.1", port, 0, 1 + 1)], 2.0)[0].startswith(
        "1 of 2 hosts"
    )
    stranger.join()
    assert knocked


def connected(port: int) -> socket.socket:
    """As soon as somebody listens."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def test_something_else_at_the_address_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]

        def answer() -> None:
            connection, _ = door.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")

        other = threading.Thread(target=answer)
        other.start()
        with pytest.raises(OutOfTime, match=r"0\.2 s: something else answers there\n"):
            rendezvous.meet(rendezvous.HostAddress("127.0.0.1", port, 1, 2), 0.2)
        other.join()


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("", 0)) as door:
        port = door.getsockname()[1]
        assert met([rendezvous.HostAddress("127.0.0.1", port, 0, 2)], 1) == [
            f"cannot wait for hosts at 127.0.0.1:{port}: Address already in use\n"
            "  expected: a port of this host that nobody else uses"
        ]
