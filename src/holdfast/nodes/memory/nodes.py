"""Nodes about memory: a run over time, a report, a picture of the machine, freeing memory.

    with HoldfastMemoryTimeline() as timeline:      # without ComfyUI: what happens in the block
        work()
    picture, link, summary = timeline.draw()["result"]

Files are written into ComfyUI's temp folder under names made here.
"""

from __future__ import annotations

import datetime
import sys
from typing import Any, Self

from holdfast.base.errors import Misuse
from holdfast.nodes import host, node
from holdfast.nodes.host import following, models
from holdfast.nodes.host.sockets import ANYTHING
from holdfast.nodes.memory import holding, sampling, words
from holdfast.nodes.memory.freeing import free
from holdfast.nodes.memory.recording import Recorder, RunRecording, extract_run
from holdfast.nodes.memory.sampling import Sampler
from holdfast.nodes.memory.sheet import NARROWEST, THEMES, WIDEST, png, tensor

CATEGORY = "Holdfast"
FRESH_S = 60  # older topologies are discovered again
NodeResult = dict[str, Any]  # {"ui": what the node shows, "result": its outputs}

_AFTER = {"after": node.link(ANYTHING)}
_PICTURE = {
    "theme": node.choice(THEMES, "dark"),
    "width": node.integer(1280, NARROWEST, WIDEST, step=16),
}
# One per process: a prompt is recorded before its node object exists.
RECORDER = Recorder("HoldfastMemoryTimeline")


def watch_prompts(server: Any = None) -> bool:
    """Record prompts with a Memory Timeline from now on; False without ComfyUI."""
    return RECORDER.watch(server)


class _MemoryNode(node.UncachedNode):
    CATEGORY = CATEGORY
    OUTPUT_NODE = True


class HoldfastMemoryTimeline(_MemoryNode):
    """Memory over the run of a workflow, by node."""

    RETURN_TYPES = ("IMAGE", "STRING", "STRING")
    RETURN_NAMES = ("picture", "report_link", "summary")
    FUNCTION = "draw"
    INPUTS = node.declare(_PICTURE, _AFTER)

    def __init__(self) -> None:
        self._sampler: Sampler | None = None

    def __enter__(self) -> Self:
        self._sampler = Sampler().start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    def draw(self, theme: str = "dark", width: int = 1280, after: object = None) -> NodeResult:
        """Outputs: (picture, report_link, summary).

        In ComfyUI of the run that this node is part of, elsewhere of the last `with` block of this
        object. Raises Misuse if nothing was recorded.
        """
        from holdfast.nodes.memory import page, pictures

        run = self._current_run()
        picture = pictures.timeline(run, width=width, theme=theme)
        summary = words.run_text(run)
        file = models.new_file("holdfast_memory", ".html")
        file.path.write_text(page.html(run), encoding="utf-8")
        result = (tensor(picture), file.link, summary)
        return _make_result(result, f"{summary}\nreport: {file.link}", picture)

    def _current_run(self) -> RunRecording:
        if self._sampler is not None:
            run = extract_run(self._sampler, None, {})
        else:
            run = RECORDER.current_run(but=host.node_id())
        if run is None:
            raise Misuse(
                "there is no recording of this run",
                expected="a prompt that was sent to ComfyUI while Holdfast's pack was loaded, or "
                "`with HoldfastMemoryTimeline() as timeline:` around the work",
                hint="run the workflow again; holdfast comfy check URL tells whether the pack is "
                "loaded",
            )
        return run


class HoldfastMemoryReport(_MemoryNode):
    """Memory now, and who holds it."""

    RETURN_TYPES = ("STRING", "DICT")
    RETURN_NAMES = ("report", "data")
    FUNCTION = "report"
    INPUTS = node.declare({}, _AFTER)

    def report(self, after: object = None) -> NodeResult:
        """Outputs: (report, data)."""
        del after  # what is only waited for is no holder
        found = report(host.progress())
        text = words.report_text(found)
        return _make_result((text, words.report_data(found)), text)


class HoldfastTopologyPicture(_MemoryNode):
    """The machine as a picture."""

    RETURN_TYPES = ("IMAGE", "STRING")
    RETURN_NAMES = ("picture", "topology_info")
    FUNCTION = "draw"
    INPUTS = node.declare({"measure": node.boolean(False), **_PICTURE}, _AFTER)

    def draw(
        self, measure: bool = False, theme: str = "dark", width: int = 1280, after: object = None
    ) -> NodeResult:
        """Outputs: (picture, topology_info). Raises Unsupported for timing a made-up machine."""
        from holdfast import topology
        from holdfast.nodes.memory.machine import machine
        from holdfast.topology.render import tree

        show = host.progress()
        show(0, 1)
        found = topology.discover()
        if _age_s(found.discovered_at) > FRESH_S:
            found = topology.discover(refresh=True)
        if measure:
            found = topology.measure(found, progress=lambda _, done, total: show(done, total))
        picture = machine(found, width=width, theme=theme)
        return _make_result((tensor(picture), tree(found)), None, picture)


class HoldfastFreeMemory(_MemoryNode):
    """Frees memory, and shows who holds the rest."""

    RETURN_TYPES = (ANYTHING, "STRING")
    RETURN_NAMES = ("anything", "freed")
    FUNCTION = "free"
    INPUTS = node.declare(
        {
            "models": node.boolean(True),
            "caches": node.boolean(True),
            "forget_outputs": node.boolean(False),
        },
        {"anything": node.link(ANYTHING)},
    )

    def free(
        self,
        models: bool = True,
        caches: bool = True,
        forget_outputs: bool = False,
        anything: Any = None,
    ) -> NodeResult:
        """Outputs: (anything, freed)."""
        text = words.freed_text(free(models, caches, forget_outputs, host.progress()))
        return _make_result((anything, text), text)


def report(tick: holding.Tick | None = None) -> words.MemoryReport:
    """Memory now, and who holds it."""
    from holdfast.memory.pools.manager import memory_manager

    pools = {
        device: (stats.allocated_bytes, stats.reserved_bytes)
        for device, stats in memory_manager.by_device().items()
        if stats.reserved_bytes and not device.startswith("cuda")
    }
    return words.MemoryReport(
        sample=sampling.take(),
        models=tuple(models.list_loaded()),
        pools=pools,
        shared_virtual=tuple(str(one) for one in holding.shared_virtual()),
        tpu=tuple(holding.on_tpu()),
        holdings=holding.holdings(tick),
    )


def _make_result(result: tuple[Any, ...], text: str | None, picture: Any = None) -> NodeResult:
    """The outputs, with the text and the picture that the node shows in ComfyUI."""
    ui: dict[str, list[Any]] = {}
    if text is not None:
        ui["text"] = [text]
        host.text(text)
    if picture is not None and following.has_server():
        file = models.new_file("holdfast_picture", ".png")
        file.path.write_bytes(png(picture))
        ui["images"] = [file.shown]
    return {"ui": ui, "result": result}


def _age_s(discovered_at: str | None) -> float:
    if discovered_at is None:
        return float(sys.maxsize)
    now = datetime.datetime.now(datetime.UTC)
    return (now - datetime.datetime.fromisoformat(discovered_at)).total_seconds()


NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS = node.class_mappings(
    HoldfastMemoryTimeline, HoldfastMemoryReport, HoldfastTopologyPicture, HoldfastFreeMemory
)
