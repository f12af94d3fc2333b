"""Packed files: the same tensors in less room, the original back, and an error for any damage."""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from holdfast import residency
from holdfast.base.errors import BadInput
from holdfast.residency.files import packed, packed_folder
from holdfast.residency.files.checkpoint import read_header
from holdfast.residency.files.loading import Loading
from holdfast.residency.files.tensors import open_tensors
from tests.interrupting import CtrlC, lines_of

SCHEMES = ("flat", "ranked")


def net() -> nn.Module:
    """Layers with a tied weight, a buffer and an fp32 part."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(192, 192) for _ in range(6))).bfloat16()
    layers.register_buffer("shift", torch.randn(192, 192).bfloat16())
    layers.register_parameter("scale", nn.Parameter(torch.ones(3)))
    return tie(layers.requires_grad_(False))


def tie(layers: nn.Module) -> nn.Module:
    layers[3].weight = layers[1].weight  # pyright: ignore
    return layers


def weights() -> dict[str, torch.Tensor]:
    state = dict(net().state_dict())
    del state["3.weight"]
    return {name: tensor.contiguous() for name, tensor in state.items()}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "model.safetensors"
    save_file(weights(), path, metadata={"format": "pt", "é": '"\n'})
    return path


@pytest.fixture(scope="module", params=SCHEMES)
def both(request: pytest.FixtureRequest, original: Path) -> tuple[Path, str]:
    path = original.with_name(f"{request.param}.safetensors")
    packed.pack_file(original, path, schemes=(request.param,))
    return path, request.param


def test_the_original_comes_back_byte_for_byte(both: tuple[Path, str], original: Path) -> None:
    again = both[0].with_name("again.safetensors")
    packed.unpack_file(both[0], again)
    assert again.read_bytes() == original.read_bytes()


def test_it_is_smaller_and_shows_the_same_tensors(both: tuple[Path, str], original: Path) -> None:
    before, after = read_header(original), read_header(both[0])
    assert {n: (i.dtype, i.shape) for n, i in before.items()} == {
        n: (i.dtype, i.shape) for n, i in after.items()
    }
    large = [name for name, info in before.items() if info.elements > 10_000]
    sizes = [sum(header[name].size_bytes for name in large) for header in (before, after)]
    assert sizes[1] < {"flat": 0.8, "ranked": 0.75}[both[1]] * sizes[0]
    opened = open_tensors(both[0])
    for name, tensor in weights().items():
        assert torch.equal(opened.get_tensor(name), tensor), name


def test_weights_are_decoded_where_they_are_loaded(both: tuple[Path, str]) -> None:
    empty = tie(net().to("meta"))
    loaded = Loading(empty, both[0]).run()
    assert not loaded.packed
    assert all(torch.equal(empty.state_dict()[n], t) for n, t in net().state_dict().items())
    empty = tie(net().to("meta").float())
    Loading(empty, both[0], dtype=torch.float32, keep_packed=SCHEMES).run()
    assert torch.equal(empty.state_dict()["1.weight"], weights()["1.weight"].float())


def test_a_managed_module_keeps_them_packed(both: tuple[Path, str]) -> None:
    plain, x = net(), torch.randn(4, 192).bfloat16()
    empty = tie(net().to("meta"))
    loaded = Loading(empty, both[0], keep_packed=SCHEMES).run()
    assert sorted(loaded.packed) == [f"{i}.weight" for i in (0, 1, 2, 4, 5)]
    managed = residency.manage(empty, "250KB", "simulated", payloads=loaded.packed)
    for _ in range(4):
        assert torch.equal(empty(x), plain(x))
    kept = sum(stretch.payload_bytes for stretch in managed.weights.stretches)
    assert kept < 0.85 * managed.weights.total_bytes
    assert all(torch.equal(empty.state_dict()[n], t) for n, t in plain.state_dict().items())
    residency.unmanage(empty)
    assert torch.equal(empty(x), plain(x))
    assert empty[3].weight is empty[1].weight  # pyright: ignore


# ---- damage


def _use(path: Path, original: Path) -> None:
    """Load a file in all ways. Raises BadInput; else the weights have to be right."""
    for keep in ((), SCHEMES):
        empty = tie(net().to("meta"))
        loaded = Loading(empty, path, keep_packed=keep).run()
        if keep:
            residency.manage(empty, "10MB", "simulated", payloads=loaded.packed)
            residency.unmanage(empty)
        assert all(torch.equal(empty.state_dict()[n], t) for n, t in net().state_dict().items())
    again = path.with_name("restored")
    packed.unpack_file(path, again)
    assert again.read_bytes() == original.read_bytes()
    again.unlink()


def test_a_flipped_bit_is_an_error_or_changes_nothing(
    both: tuple[Path, str], original: Path, tmp_path: Path
) -> None:
    data, rng = both[0].read_bytes(), random.Random(0)
    header = 8 + int.from_bytes(data[:8], "little")
    places = [rng.randrange(header) for _ in range(60)]
    places += [rng.randrange(header, len(data)) for _ in range(60)]
    damaged = tmp_path / "damaged.safetensors"
    refused = 0
    for place in places:
        one = bytearray(data)
        one[place] ^= 1 << rng.randrange(8)
        damaged.write_bytes(one)
        try:
            _use(damaged, original)
        except BadInput:
            refused += 1
    assert refused >= 110  # the others are letters of the original's metadata, or the room behind
    assert not damaged.with_name("restored").exists()


@pytest.mark.parametrize("part", [0.0, 0.001, 0.3, 0.7, 0.999])
def test_a_truncated_file_is_refused(
    both: tuple[Path, str], original: Path, tmp_path: Path, part: float
) -> None:
    data = both[0].read_bytes()
    short = tmp_path / "short.safetensors"
    short.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(BadInput, match="cannot read weights"):
        _use(short, original)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'\\"listed\\": ', b'\\"listed\\": 9'),
        (b'\\"base\\": 1', b'\\"base\\": 9'),
        (b'\\"width\\": ', b'\\"width\\": 7'),
        (b'\\"scheme\\": \\"', b'\\"scheme\\": \\"x'),
        (b'\\"shape\\": [192', b'\\"shape\\": [999'),
        (b'\\"crc32\\": ', b'\\"crc23\\": '),
        (b'\\"tensors\\"', b'\\"tensors\\"'),
    ],
)
def test_metadata_that_lies_is_refused(
    both: tuple[Path, str], tmp_path: Path, before: bytes, after: bytes
) -> None:
    data = both[0].read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length]
    if before not in header:
        header = header.replace(b'"tensors":', b'"pensors":')
    else:
        header = header.replace(before, after)
    header = header[:length] if len(header) > length else header.ljust(length)
    foreign = tmp_path / "foreign.safetensors"
    foreign.write_bytes(data[:8] + header + data[8 + length :])
    with pytest.raises(BadInput):
        Loading(tie(net().to("meta")), foreign).run()


def test_what_cannot_be_packed_or_unpacked_is_refused(original: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"

    def pack(source: Path) -> None:
        packed_folder.pack_model(source, new, schemes=SCHEMES)

    def wrong(source: Path, act: Callable[[Path], object] = pack) -> str:
        with pytest.raises(BadInput) as found:
            act(source)
        assert not new.exists()
        return str(found.value)

    assert "it is not packed" in wrong(original, lambda one: packed_folder.unpack_model(one, new))
    once = tmp_path / "once.safetensors"
    packed.pack_file(original, once)
    assert "that are not packed" in wrong(once)
    save_file({"a": torch.ones(5)}, tmp_path / "float.safetensors")
    assert "has no weights in bf16" in wrong(tmp_path / "float.safetensors")
    save_file({"a": torch.ones(5).half()}, tmp_path / "few.safetensors")
    assert "would take less" in wrong(tmp_path / "few.safetensors")
    (tmp_path / "more.safetensors").write_bytes(original.read_bytes() + b"more")
    assert "4 B come after its last tensor" in wrong(tmp_path / "more.safetensors")
    with pytest.raises(BadInput, match="there is one already"):
        packed_folder.pack_model(original, once, schemes=SCHEMES)
    with pytest.raises(BadInput, match="inside the model"):
        packed_folder.pack_model(tmp_path, tmp_path / "inner", schemes=SCHEMES)


# ---- never half a file


def _folder(place: Path, original: Path) -> Path:
    folder = place / "model"
    for part in ("transformer", "text encoder"):
        (folder / part).mkdir(parents=True)
        shutil.copy(original, folder / part / "model.safetensors")
        (folder / part / "config.json").write_text("{}")
    return folder


def _digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [str(path.relative_to(folder)).encode() for path in files]
    return hashlib.sha256(b"".join(map(Path.read_bytes, files)) + b"".join(names)).hexdigest()


def test_a_folder_comes_back_whole(original: Path, tmp_path: Path) -> None:
    folder = _folder(tmp_path, original)
    packed_folder.pack_model(folder, tmp_path / "packed", schemes=("flat",))
    packed_folder.unpack_model(tmp_path / "packed", tmp_path / "again")
    assert _digest(tmp_path / "again") == _digest(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "model", "packed"]


def test_ctrl_c_at_any_line_leaves_nothing(original: Path, tmp_path: Path) -> None:
    folder = _folder(tmp_path, original)
    before = _digest(folder)
    target = tmp_path / "packed"

    def work() -> None:
        packed_folder.pack_model(folder, target, schemes=("flat",))

    files = {packed.__file__, packed_folder.__file__}
    lines = lines_of(work, files)
    shutil.rmtree(target)
    for at in range(0, len(lines), max(1, len(lines) // 60)):
        with pytest.raises(KeyboardInterrupt), CtrlC(files, at):
            work()
        named = [path.name for path in tmp_path.iterdir()]
        if "packed" in named:  # it was whole already
            assert at > len(lines) * 0.9
            shutil.rmtree(target)
            named.remove("packed")
        assert named == ["model"]
    assert _digest(folder) == before


KILLED = """
import sys
from pathlib import Path
from holdfast.residency.files import packed_folder

def progress(done, total):
    print(done, flush=True)
    sys.stdin.readline()

packed_folder.pack_model(Path(sys.argv[1]), Path(sys.argv[2]), schemes=("flat",), progress=progress)
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("after", [1, 14, 25, None])
def test_a_process_that_is_killed_leaves_no_half_model(
    original: Path, tmp_path: Path, after: int | None
) -> None:
    folder = _folder(tmp_path, original)
    before = _digest(folder)
    target = tmp_path / "packed"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", KILLED, str(folder), str(target)]
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        heard = 0
        while (line := process.stdout.readline().strip()) != "done":
            assert line, "it ended early"
            heard += 1
            if heard == after:
                break
            process.stdin.write("\n")
            process.stdin.flush()
        process.send_signal(signal.SIGKILL)
    assert target.exists() == (after is None)
    assert _digest(folder) == before
    if after is None:
        packed_folder.unpack_model(target, tmp_path / "again")
        assert _digest(tmp_path / "again") == before


def test_a_full_disk_is_an_error_and_leaves_nothing(original: Path, tmp_path: Path) -> None:
    folder = _folder(tmp_path, original)
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from holdfast.base.errors import BadInput\n"
        "from holdfast.residency.files import packed_folder\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: packed_folder.pack_model(Path(sys.argv[1]), Path(sys.argv[2]), schemes=('flat',))\n"
        "except BadInput as exc: print(exc)\n"
    )
    command = [sys.executable, "-c", script, str(folder), str(tmp_path / "packed")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"cannot pack {str(folder)!r}: File too large")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
