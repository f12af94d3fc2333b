"""Recordings that tests and pictures use: a few blocks to count by hand, a made-up UNet, many."""

from __future__ import annotations

import random
from array import array

from holdfast.memory.profile.recording import Event, Frame, Kind, MemoryPlace, Recording

MS = 10**6
MB = 10**6


def few() -> Recording:
    """Three blocks of which one is left, and one from before. The peak is 150 at 30 ms."""
    made = Recording(title="few.py", started_s=1_000_000.0, duration_ns=60 * MS)
    made.places_table = [MemoryPlace("torch", "cpu"), MemoryPlace("pool", "cuda:0", "weights")]
    made.tags_table += ["vae"]
    library = Frame("/usr/lib/python3/site-packages/torch/nn/functional.py", 7, "linear")
    made.stacks_table += [
        (library, Frame("/home/me/few.py", 12, "forward"), Frame("/home/me/few.py", 3, "<module>")),
        (Frame("/home/me/few.py", 20, "load"), Frame("/home/me/few.py", 2, "<module>")),
    ]
    for event in (
        Event(5 * MS, Kind.RESERVE, 0x1000, 4096, 0, 1, 0),
        Event(10 * MS, Kind.ALLOC, 0x1000, 100, 2, 1, 0),
        Event(20 * MS, Kind.ALLOC, 0x9000, 30, 1, 0, 1),
        Event(25 * MS, Kind.FREE, 0xF000, 0, 0, 0, 0),  # allocated before the recording
        Event(30 * MS, Kind.ALLOC, 0xA000, 20, 1, 0, 1),
        Event(40 * MS, Kind.FREE, 0x9000, 0, 0, 0, 0),
        Event(50 * MS, Kind.FREE, 0xA000, 0, 0, 0, 0),
    ):
        made.add(event)
    made.series["rss"] = (array("q", [0, 30 * MS, 50 * MS]), array("q", [400, 900, 700]))
    made.notes.append("2 events were lost")
    return made


class _Maker:
    """Hands out addresses from one range, first fit, and writes events."""

    def __init__(self, title: str, seed: int = 1) -> None:
        self.made = Recording(title=title, started_s=1_700_000_000.0)
        self.random = random.Random(seed)
        self.now_ns = 0
        self.stacks: dict[tuple[Frame, ...], int] = {(): 0}
        self.tags: dict[str, int] = {"": 0}
        self.taken: dict[int, list[tuple[int, int]]] = {}
        self.rss: tuple[array[int], array[int]] = (array("q"), array("q"))
        self.alive_bytes = 0

    def _write(self, kind: Kind, address: int, size: int, stack: int, place: int, tag: int) -> None:
        self.made.add(Event(self.now_ns, kind, address, size, stack, place, tag))

    def wait(self, us: float) -> None:
        self.now_ns += int(us * 1000 * self.random.uniform(0.6, 1.4))
        if not self.rss[0] or self.now_ns - self.rss[0][-1] > 4 * MS:
            self.rss[0].append(self.now_ns)
            before = self.rss[1][-1] if self.rss[1] else 0  # it falls more slowly than it grows
            self.rss[1].append(max(int(self.alive_bytes * 1.04 + 310 * MB), before * 97 // 100))

    def reserve(self, address: int, size: int, place: int) -> None:
        self._write(Kind.RESERVE, address, size, 0, place, 0)

    def take(
        self, size: int, stack: tuple[Frame, ...], place: int, tag: str
    ) -> tuple[int, int, int]:
        taken = self.taken.setdefault(place, [])
        address = 0x7F10_0000_0000 + (place << 36)
        size = -(-size // 512) * 512
        for start, length in taken:
            if start - address >= size:
                break
            address = start + length
        taken.append((address, size))
        taken.sort()
        number = self.stacks.setdefault(stack, len(self.stacks))
        label = self.tags.setdefault(tag, len(self.tags))
        self._write(Kind.ALLOC, address, size, number, place, label)
        self.alive_bytes += size
        return address, size, place

    def give(self, block: tuple[int, int, int]) -> None:
        address, size, place = block
        self.taken[place].remove((address, size))
        self._write(Kind.FREE, address, size, 0, place, 0)
        self.alive_bytes -= size

    def done(self) -> Recording:
        made = self.made
        made.duration_ns = self.now_ns + 40 * MS
        made.stacks_table, made.tags_table = list(self.stacks), list(self.tags)
        made.series["rss"] = self.rss
        return made


_SITE = "/opt/venv/lib/python3.12/site-packages"
_MAIN = (
    Frame("/home/ada/paint/draw.py", 41, "main"),
    Frame("/home/ada/paint/draw.py", 58, "<module>"),
)
_TORCH = f"{_SITE}/torch/nn/modules"
_STEP = (Frame(f"{_SITE}/diffusers/pipelines/sdxl.py", 1197, "__call__"), *_MAIN)
_UNET = f"{_SITE}/diffusers/models/unets/unet_2d_condition.py"
_RESNET = f"{_SITE}/diffusers/models/resnet.py"
_ATTENTION = f"{_SITE}/diffusers/models/attention.py"


def _stack(file: str, line: int, name: str, *rest: Frame, op: str = "conv.py") -> tuple[Frame, ...]:
    inner = Frame(f"{_TORCH}/{op}", 548, "forward")
    called = Frame(f"{_TORCH}/module.py", 1784, "_call_impl")
    return (inner, called, Frame(file, line, name), *rest)


def unet(steps: int = 8) -> Recording:
    """Text, a few denoising steps of a UNet with skips, and a VAE, as SDXL would look."""
    m = _Maker("draw.py --model sdxl --steps 8")
    m.made.places_table = [MemoryPlace("torch", "cuda:0"), MemoryPlace("numpy", "cpu")]
    m.reserve(0x7F10_0000_0000, 5_600 * MB, 0)
    load = (Frame(f"{_SITE}/safetensors/torch.py", 336, "load_file"),)
    for tag, sizes in (
        ("text", [98 * MB] + [6 * MB] * 24),
        ("unet", [4 * MB, 9 * MB, 16 * MB, 21 * MB] * 24),
        ("vae", [2 * MB, 5 * MB, 9 * MB] * 10),
    ):
        line = {"text": 512, "unet": 518, "vae": 523}[tag]
        where = (*load, Frame(f"{_SITE}/diffusers/pipelines/sdxl.py", line, f"load_{tag}"), *_MAIN)
        for size in sizes:
            m.take(int(size * m.random.uniform(0.8, 1.2)), where, 0, tag)
            m.wait(2200)
    _text(m)
    latent = m.take(8 * MB, _stack("/home/ada/paint/draw.py", 30, "start", *_MAIN), 0, "unet")
    for _ in range(steps):
        _step(m)
    _decode(m)
    m.give(latent)
    return m.done()


def _text(m: _Maker) -> None:
    where = f"{_SITE}/transformers/models/clip/modeling_clip.py"
    for _ in range(24):
        held = [
            m.take(int(mb * MB), _stack(where, line, name, *_STEP, op="linear.py"), 0, "text")
            for mb, line, name in ((6, 310, "forward"), (12, 352, "attention"), (24, 371, "mlp"))
            if m.wait(700) is None
        ]
        for block in held:
            m.wait(200)
            m.give(block)


def _step(m: _Maker) -> None:
    skips = []
    down = (Frame(_UNET, 1216, "forward"), *_STEP)
    up = (Frame(_UNET, 1293, "forward"), *_STEP)
    for level, mb in enumerate((168, 168, 168, 84, 84, 84, 42, 42, 42)):
        _layer(m, mb, down, level >= 3)
        stack = _stack(_RESNET, 341, "forward", Frame(_UNET, 1231, "down_block"), *_STEP)
        skips.append(m.take(mb * MB, stack, 0, "unet"))
    _layer(m, 42, (Frame(_UNET, 1262, "mid_block"), *_STEP), True)
    for block in reversed(skips):
        mb = block[1] // MB
        _layer(m, mb, up, mb < 160)
        m.give(block)
        m.wait(900)
    host = m.take(
        26 * MB, (Frame("/home/ada/paint/preview.py", 17, "preview"), *_MAIN), 1, "preview"
    )
    m.wait(9000)
    m.give(host)


def _layer(m: _Maker, mb: int, rest: tuple[Frame, ...], attention: bool) -> None:
    held = []
    for line, name, part in ((327, "norm1", 1.0), (331, "conv1", 1.0), (338, "conv2", 1.0)):
        held.append(m.take(int(mb * part * MB), _stack(_RESNET, line, name, *rest), 0, "unet"))
        m.wait(1500)
        if len(held) > 2:
            m.give(held.pop(0))
    if attention:
        for line, name, part in ((212, "qkv", 1.5), (240, "softmax", 2.6), (261, "ff", 2.0)):
            stack = _stack(_ATTENTION, line, name, *rest, op="linear.py")
            held.append(m.take(int(mb * part * MB), stack, 0, "unet"))
            m.wait(1300)
            for _ in range(3):
                small = m.take(m.random.randrange(2_000, MB), stack, 0, "unet")
                m.wait(120)
                m.give(small)
            if len(held) > 3:
                m.give(held.pop(0))
    for block in held:
        m.give(block)
        m.wait(300)


def _decode(m: _Maker) -> None:
    where = f"{_SITE}/diffusers/models/autoencoders/vae.py"
    held = []
    for mb in (33, 67, 134, 134, 268, 268, 402, 402):
        stack = _stack(where, 327, "up_block", Frame(where, 291, "decode"), *_STEP)
        held.append(m.take(mb * MB, stack, 0, "vae"))
        m.wait(11_000)
        held.append(
            m.take(int(mb * 0.8) * MB, (*stack[:2], Frame(where, 333, "conv"), *_STEP), 0, "vae")
        )
        m.wait(7_000)
        while len(held) > 3:
            m.give(held.pop(0))
    picture = m.take(12 * MB, (Frame("/home/ada/paint/draw.py", 47, "save"), *_MAIN), 1, "picture")
    for block in held:
        m.give(block)
        m.wait(2_000)
    m.wait(60_000)
    assert picture


def many(events: int, seed: int = 3) -> Recording:
    """Events without a pattern: about 3,000 blocks alive, 2,000 stacks, three places."""
    rng = random.Random(seed)
    made = Recording(title=f"{events} events", duration_ns=events * 40_000)
    made.places_table = [
        MemoryPlace("torch", "cpu"),
        MemoryPlace("torch", "cuda:0"),
        MemoryPlace("numpy", "cpu"),
    ]
    made.tags_table += ["text", "unet", "vae"]
    made.stacks_table += [
        tuple(
            Frame(f"/work/app/module{(s + d) % 40}.py", s % 300 + d, f"f{s % 97}_{d}")
            for d in range(9)
        )
        for s in range(2000)
    ]
    alive: list[tuple[int, int]] = []
    address = 1 << 32
    for number in range(events):
        time_ns = number * 40_000 + rng.randrange(30_000)
        if alive and (len(alive) > 3000 or rng.random() < 0.49):
            at, place = alive.pop(int(len(alive) * rng.random() ** 0.2))
            made.add(Event(time_ns, Kind.FREE, at, 0, 0, place, 0))
            continue
        size = int(2 ** rng.uniform(9, 24))
        place, stack = rng.randrange(3), 1 + int(2000 * rng.random() ** 3)
        made.add(Event(time_ns, Kind.ALLOC, address, size, stack, place, rng.randrange(4)))
        alive.append((address, place))
        address += size + rng.choice((0, 0, 4096))
    made.series["rss"] = (
        array("q", range(0, made.duration_ns, 50_000_000)),
        array(
            "q", (3 * 10**9 + rng.randrange(10**9) for _ in range(0, made.duration_ns, 50_000_000))
        ),
    )
    return made
