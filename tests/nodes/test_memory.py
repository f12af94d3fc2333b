"""The nodes about memory, without ComfyUI."""

from __future__ import annotations

import gc
import json
import operator
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast.base.errors import BadInput, Misuse
from holdfast.base.series import ticks
from holdfast.nodes import memory
from holdfast.nodes.host import following, models
from holdfast.nodes.host.sockets import ANYTHING
from holdfast.nodes.memory import freeing, holding, sampling, words
from holdfast.nodes.memory.machine import _IN_THE_DARK, machine
from holdfast.nodes.memory.pictures import timeline
from holdfast.nodes.memory.recording import Recorder, RunRecording, extract_run
from holdfast.nodes.memory.sampling import Device, Peak, Sample, Span
from holdfast.nodes.memory.sheet import to_plain
from holdfast.topology.probes.simulated import simulate

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
GB = 10**9
KIND = "HoldfastMemoryTimeline"


def run_of_two_nodes(*, device: bool = True) -> RunRecording:
    """Two nodes; the second has the peak."""
    samples = []
    for at, ram, vram in [(0, 2, 1), (1, 3, 4), (2, 3, 15), (3, 2.5, 5)]:
        there = Device("cuda:0", vram * GB, (vram + 1) * GB, (vram + 2) * GB, 16 * GB)
        node = "1" if at < 2 else "2"
        samples.append(Sample(at, int(ram * GB), 20 * GB, (there,) if device else (), 0, node, "a"))
    peaks = {
        "1": Peak("1", 3 * GB, 4 * GB if device else None, 3 * GB if device else 1 * GB, 1.0),
        "2": Peak("2", 3 * GB, 15 * GB if device else None, 11 * GB if device else 0, 1.0),
    }
    spans = (Span("1", "Load", "a", 0, 2), Span("2", "VAEDecode", "a", 2, 3))
    return RunRecording(tuple(samples), spans, peaks, {"1": "Load <b>it</b>", "2": "VAEDecode"})


# ---- nodes


def test_every_node_has_what_comfyui_shows() -> None:
    assert list(memory.NODE_CLASS_MAPPINGS) == list(memory.NODE_DISPLAY_NAME_MAPPINGS)
    for name, node in memory.NODE_CLASS_MAPPINGS.items():
        assert node.__name__ == name
        assert node.CATEGORY == "Holdfast"
        assert node.DESCRIPTION
        assert len(node.RETURN_TYPES) == len(node.RETURN_NAMES) == len(node.OUTPUT_TOOLTIPS)
        assert callable(getattr(node, node.FUNCTION))
        changed = node.IS_CHANGED()
        assert changed != changed
        inputs: Any = node
        for group in inputs.INPUT_TYPES().values():
            for kind, options in group.values():
                assert kind
                assert options["tooltip"]


def test_the_socket_for_anything_fits_every_type_and_is_a_star() -> None:
    others = ["IMAGE", "*", "MODEL,CLIP"]
    assert not any(operator.ne(ANYTHING, other) for other in others)
    assert not any(operator.ne(other, ANYTHING) for other in others)  # ComfyUI asks both ways
    assert [operator.eq(ANYTHING, other) for other in others] == [False, True, False]
    assert json.dumps([ANYTHING]) == '["*"]'
    assert hash(ANYTHING) == hash("*")


def test_a_timeline_of_a_block_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with memory.HoldfastMemoryTimeline() as node:
        held = torch.ones(20_000_000)
        time.sleep(0.2)
        del held
    shown = node.draw(theme="light", width=640)
    picture, link, summary = shown["result"]
    assert picture.shape[0] == 1
    assert picture.shape[2:] == (640, 3)
    assert picture.dtype == torch.float32
    assert 0 <= float(picture.min()) < float(picture.max()) <= 1
    assert Path(link).is_relative_to(tmp_path)
    page = Path(link).read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "peak in RAM: " in summary
    assert shown["ui"]["text"] == [f"{summary}\nreport: {link}"]
    assert "images" not in shown["ui"]  # nobody is there to look


def test_without_a_recording_there_is_no_picture() -> None:
    with pytest.raises(Misuse) as refused:
        memory.HoldfastMemoryTimeline().draw()
    assert str(refused.value) == (
        "there is no recording of this run\n"
        "  expected: a prompt that was sent to ComfyUI while Holdfast's pack was loaded, or "
        "`with HoldfastMemoryTimeline() as timeline:` around the work\n"
        "  try: run the workflow again; holdfast comfy check URL tells whether the pack is loaded"
    )


def test_themes_and_widths_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(BadInput) as refused:
        timeline(run_of_two_nodes(), theme="pink")
    assert str(refused.value) == 'there is no theme \'pink\'\n  expected: "dark" or "light"'
    for width in (0, 10**9, 700.0, True):
        with pytest.raises(BadInput) as refused:
            timeline(run_of_two_nodes(), width=width)  # pyright: ignore[reportArgumentType]
        assert str(refused.value) == (
            f"cannot draw a picture {width!r} pixels wide\n  expected: an integer from 480 to 2560"
        )


def test_a_look_names_who_holds_the_largest_tensors() -> None:
    class Cache:  # no global: what pytest has frozen is not seen
        kept: ClassVar = {"pictures": [torch.zeros(30_000_000)]}

    module = torch.nn.Linear(700, 700)
    found = holding.holdings(limit_s=60)
    assert found.complete
    lines = [words.holder_text(row) for row in found.rows]
    assert (
        "120 MB on cpu in 1 tensor: a Tensor (30000000,) < item 0 of list < key 'pictures' of dict "
        f"< attribute 'kept' of class {Cache.__qualname__}"
    ) in lines
    assert "2.0 MB on cpu in 2 tensors: a module Linear" in lines
    assert module is not None


def test_a_report_has_text_and_the_same_as_data() -> None:
    text, data = memory.HoldfastMemoryReport().report(after=object())["result"]
    lines = text.splitlines()
    assert lines[0].startswith("RAM: ")
    assert lines[1] == "models loaded by ComfyUI: none"
    assert lines[-1].endswith("(Python, libraries, files, caches)")
    assert json.loads(json.dumps(data)) == data
    assert data["ram_bytes"] > 0


def test_looking_keeps_nothing_alive_and_is_quick() -> None:
    held = torch.zeros(2_000_000)
    start_s = time.monotonic()
    found = holding.holdings(limit_s=1.0)
    assert time.monotonic() - start_s < 60
    assert found.by_device()["cpu"] >= 8_000_000
    seen = weakref.ref(held)
    del held
    gc.collect()
    assert seen() is None


def test_what_there_was_no_time_for_is_said() -> None:
    held = torch.zeros(2_000_000)
    found = holding.holdings(limit_s=0.0)
    assert not found.complete
    lines = words.holders_text(found)
    assert lines[-1] == "  (there was no time to look at everything: HOLDFAST_REPORT_S gives more)"
    assert any(holding.NOT_LOOKED_FOR in line for line in lines)
    del held


def test_progress_is_told_and_an_interrupt_ends_the_look() -> None:
    told: list[tuple[int, int]] = []
    holding.holdings(lambda done, total: told.append((done, total)))
    assert told == [(n, 5) for n in range(6)]

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        holding.holdings(stop)


def test_free_memory_hands_on_what_came_and_says_what_was_freed() -> None:
    thing = object()
    handed_on, text = memory.HoldfastFreeMemory().free(anything=thing)["result"]
    assert handed_on is thing
    assert text.startswith("freed: ")
    assert "\n  RAM: " in text


def test_memory_that_is_let_go_is_freed_with_the_caches() -> None:
    pool = memory_of_pool()
    freed = memory.free(models=False)
    assert freed.pool_bytes >= 8_000_000
    assert freed.models == ()
    assert not freed.later
    assert pool is not None


def memory_of_pool() -> Any:
    from holdfast.memory import MemoryPool

    pool = MemoryPool("cpu")
    block = pool.allocate(8_000_000)
    pool.deallocate(block)
    return pool


def test_freed_says_what_is_still_held_and_what_to_do() -> None:
    row = holding.Holding("cuda:0", 2 * GB, 3, ("the kept result of node 4 (Load)",))
    model = models.Model("SDXL", "cuda:0", 5 * GB, 3 * GB, 2 * GB, "cpu")
    freed = memory.Freed(
        models=(model,),
        ram_bytes=-1000,
        device_bytes={"cuda:0": 3 * GB},
        pool_bytes=7 * GB,
        tpu_bytes=GB,
        later=True,
        forgets=False,
        ram_left_bytes=4 * GB,
        device_left_bytes={"cuda:0": 2 * GB},
        held=(row,),
        seconds=0.5,
    )
    assert words.freed_text(freed).splitlines() == [
        "freed: 3.0 GB in 500 ms",
        "  cuda:0: 3.0 GB less, 2.0 GB still in use",
        "  RAM: 1.0 KB more, 4.0 GB still in use",
        "unloaded: SDXL: 5.0 GB, 3.0 GB on cuda:0, 2.0 GB on cpu",
        "unloaded: TPU models, 1.0 GB",
        "freed by pools: 7.0 GB",
        "ComfyUI unloads its models when the prompt is over",
        "still held:",
        "  2.0 GB on cuda:0 in 3 tensors: the kept result of node 4 (Load)",
        "try: turn forget_outputs on, so that ComfyUI lets go of kept results too",
    ]


# ---- pictures and words of a run


def test_a_run_in_words() -> None:
    assert words.run_text(run_of_two_nodes()).splitlines() == [
        "3.0 s, 2 nodes of more than 50 ms",
        "peak on cuda:0: 15.0 GB of 16.0 GB, in VAEDecode #2",
        "peak in RAM: 3.0 GB, in Load <b>it</b> #1",
        "by node, how much more than when it began:",
        "  VAEDecode #2: +11.0 GB to 15.0 GB, 1.0 s",
        "  Load <b>it</b> #1: +3.0 GB to 4.0 GB, 2.0 s",
        "try: cuda:0 was nearly full; Stream Model before VAEDecode #2, a smaller picture, or VAE "
        "Decode (Tiled)",
    ]
    assert "peak on" not in words.run_text(run_of_two_nodes(device=False))


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("device", [True, False])
def test_a_picture_has_its_peak_where_it_was(theme: str, device: bool) -> None:
    from holdfast.nodes.memory.sheet import find_theme

    picture = timeline(run_of_two_nodes(device=device), theme=theme, width=1280)
    colours = find_theme(theme)
    wanted = colours.device if device else colours.ram
    marks = [x for x, _ in places(picture, wanted)]
    assert marks
    assert min(marks) >= 100
    assert max(marks) <= 1280
    assert picture.getpixel((0, 0)) == rgb(colours.page)


def places(picture: Any, colour: str) -> list[tuple[int, int]]:
    width, height = picture.size
    pixels = picture.load()
    wanted = rgb(colour)
    return [(x, y) for y in range(height) for x in range(width) if pixels[x, y] == wanted]


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


def test_a_run_of_one_sample_can_be_drawn() -> None:
    one = RunRecording((Sample(5.0, GB, GB, (), 0),))
    assert timeline(one, width=480).size[0] == 480
    assert words.run_text(one) == "0 ms, no node was seen\npeak in RAM: 1.0 GB"


def test_names_that_cannot_be_drawn_are_replaced_by_the_class() -> None:
    run = run_of_two_nodes()
    strange = RunRecording(run.samples, run.spans, run.peaks, {"1": "載入模型", "2": "解碼"})
    assert timeline(strange, width=640).size[0] == 640
    assert strange.kind("2") == "VAEDecode #2"
    assert to_plain("載入 · x") == "?? | x"


def test_the_page_escapes_what_a_workflow_calls_its_nodes() -> None:
    from holdfast.nodes.memory.page import html

    page = html(run_of_two_nodes())
    assert "Load &lt;b&gt;it&lt;/b&gt; #1" in page
    assert "<b>it</b>" not in page
    assert "Hungriest nodes" in page
    assert "What to do" in page


def test_ticks_are_round_numbers() -> None:
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.9, 1.1, 4) == [0.9, 0.95, 1.0, 1.05, 1.1]


# ---- the machine


def test_a_machine_is_drawn_in_both_themes() -> None:
    made = simulate("2x64GB:cpus=4:gpu=24GB,1x128GB:far")
    dark, light = machine(made, width=960), machine(made, width=960, theme="light")
    assert dark.size == light.size
    assert dark.size[0] == 960
    assert light.getpixel((1, 1)) == (255, 255, 255)
    assert dark.getpixel((1, 1)) == rgb(_IN_THE_DARK["#ffffff"])


def test_every_colour_of_the_svg_has_one_in_the_dark() -> None:
    import re

    from holdfast.topology.render import svg

    made = simulate("2x64GB:cpus=20:gpu=24GB,1x128GB:far")
    used = set(re.findall(r"#[0-9a-f]{6}", svg(made)))
    assert used
    assert used <= _IN_THE_DARK.keys()


def test_the_node_draws_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATE", "1x16GB:cpus=2")
    picture, text = memory.HoldfastTopologyPicture().draw(width=640)["result"]
    assert picture.shape[2:] == (640, 3)
    assert text.startswith("SIMULATED")


def test_measuring_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        pass

    asked: list[None] = []

    def throw() -> None:
        asked.append(None)
        if len(asked) == 2:  # at the first step of measuring
            raise Stop

    management = types.SimpleNamespace(throw_exception_if_processing_interrupted=throw)
    monkeypatch.setitem(following.sys.modules, "comfy.model_management", management)
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_PROBES", "linux")
    with pytest.raises(Stop):
        memory.HoldfastTopologyPicture().draw(measure=True)
    assert len(asked) == 2


# ---- recording prompts


class Comfy:
    """A server with a queue, as far as it is asked."""

    def __init__(self) -> None:
        self.handlers: list[Any] = []
        self.items: list[Any] = []
        self.prompt_queue = self

    def add_on_prompt_handler(self, handler: Any) -> None:
        self.handlers.append(handler)

    def get_current_queue_volatile(self) -> tuple[list[Any], list[Any]]:
        return list(self.items), []

    def send(self, prompt: Any) -> Any:
        data: Any = {"prompt": prompt}
        for handler in self.handlers:
            data = handler(data)
        return data


@pytest.fixture
def comfy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Comfy]:
    made = Comfy()
    module = types.SimpleNamespace(PromptServer=types.SimpleNamespace(instance=made))
    monkeypatch.setitem(following.sys.modules, "server", module)
    yield made
    until(lambda: sampling.THREAD not in [thread.name for thread in threading.enumerate()])


def until(condition: Any, limit_s: float = 300) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


PROMPT = {"1": {"class_type": "Load", "inputs": {}}, "2": {"class_type": KIND, "inputs": {}}}


@pytest.mark.slow
def test_a_prompt_with_the_node_is_recorded_until_it_is_over(comfy: Comfy) -> None:
    recorder = Recorder(KIND, grace_s=3)
    assert recorder.watch(comfy)
    assert recorder.watch(comfy)
    assert len(comfy.handlers) == 1
    assert comfy.send(PROMPT) == {"prompt": PROMPT}
    assert recorder.running
    assert recorder.current_run() is None  # it does not run yet
    comfy.items = [(0, "a", PROMPT, {}, [])]
    until(lambda: len(getattr(recorder.current_run(), "samples", ())) > 3)
    assert recorder.running
    found = recorder.current_run()
    assert found is not None
    assert {one.prompt for one in found.samples} == {"a"}
    assert found.names == {"1": "Load", "2": KIND}
    comfy.items = []
    until(lambda: not recorder.running)


def test_models_of_tpu_nodes_stay_while_a_prompt_elsewhere_may_be_at_work_on_them(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    unloaded: list[int] = []
    tpu = types.SimpleNamespace(unload=lambda: unloaded.append(1) or 5)
    monkeypatch.setitem(freeing.sys.modules, "holdfast.nodes.xla", tpu)
    comfy.items = [(0, "a", PROMPT, {}, [])]
    assert freeing._unload_tpu() == 0
    assert unloaded == []
    comfy.items = []
    assert freeing._unload_tpu() == 5
    assert unloaded == [1]


def test_models_on_another_device_than_comfyuis_are_not_waited_for(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [types.SimpleNamespace(load_device="cpu")]
    management = types.SimpleNamespace(
        get_torch_device=lambda: "cuda:0", loaded_models=lambda: list(there)
    )
    monkeypatch.setitem(models.sys.modules, "comfy.model_management", management)
    queue = types.SimpleNamespace(set_flag=lambda *_: None, get_flags=lambda reset: {})
    monkeypatch.setattr(comfy, "prompt_queue", queue)
    assert models.unload_between_prompts(0.0)
    there.append(types.SimpleNamespace(load_device="cuda:0"))
    assert not models.unload_between_prompts(0.0)


def test_a_prompt_that_never_begins_is_not_waited_for(comfy: Comfy) -> None:
    recorder = Recorder(KIND, grace_s=0.05)
    recorder.watch()
    comfy.send(PROMPT)
    assert recorder.running
    until(lambda: not recorder.running)


@pytest.mark.parametrize("prompt", [None, 5, [], {"1": None}, {"1": {"class_type": "Load"}}])
def test_other_prompts_start_nothing(comfy: Comfy, prompt: Any) -> None:
    recorder = Recorder(KIND)
    recorder.watch(comfy)
    comfy.send(prompt)
    assert not recorder.running


def test_the_node_that_asks_is_no_part_of_the_recording() -> None:
    class Sampled:
        samples: ClassVar = [
            Sample(at, 5 + at, 0, (), 0, node, "a")
            for at, node in enumerate([None, "1", "1", "2", "2"])
        ]
        nodes: ClassVar = [Span("1", "Load", "a", 1, 3), Span("2", KIND, "a", 3)]

        def peaks(self, prompt: str) -> dict[str, Peak]:
            return {node: Peak(node, 9, None, 1, 2.0) for node in "12"}

    sampler: Any = Sampled()
    found = extract_run(sampler, "a", {}, but="2")
    assert found is not None
    assert [(one.at_s, one.node) for one in found.samples] == [
        *((0, None), (1, "1"), (2, "1")),
        (3, "1"),  # what there was when it began belongs to the run before it
    ]
    assert found.spans == (Span("1", "Load", "a", 1, 3),)
    assert list(found.peaks) == ["1"]
    assert extract_run(sampler, "another", {}) is None


def test_without_comfyui_there_is_nothing_to_watch() -> None:
    assert not memory.watch_prompts()
    assert models.list_loaded() == []
    assert list(models.list_kept()) == []
    assert not models.forget_outputs(0.0)
    assert not models.is_in_node()


def test_files_are_made_in_comfyuis_temp_folder_under_our_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temp"
    paths = types.SimpleNamespace(get_temp_directory=lambda: str(folder))
    monkeypatch.setitem(following.sys.modules, "folder_paths", paths)
    file = models.new_file("holdfast_memory", ".html")
    assert file.path.parent == folder
    assert folder.is_dir()
    assert file.shown == {"filename": file.path.name, "subfolder": "", "type": "temp"}
    assert file.link == f"/holdfast/page?name={file.path.name}"
    assert models.new_file("holdfast_memory", ".html").path != file.path
