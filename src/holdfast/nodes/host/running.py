"""ComfyUI for a running node: progress bar, preview, text, node id and interrupt.

Imports nothing: uses the modules that ComfyUI has loaded. Without ComfyUI every function does
nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.nodes.host import following

if TYPE_CHECKING:
    from PIL.Image import Image

PREVIEW_PIXELS = 512  # the longer side of a preview, if ComfyUI's setting is unknown


class Show(Protocol):
    """Moves the bar of a node."""

    def __call__(self, done: int, total: int, preview: Image | None = None) -> None:
        """Show `done` of `total`. Raises ComfyUI's exception if the user stops the node."""
        ...


def check() -> None:
    """Raise ComfyUI's exception if the user stops the prompt."""
    throw = _loaded_attribute("comfy.model_management", "throw_exception_if_processing_interrupted")
    if throw is not None:
        throw()


def stop() -> bool:
    """Stop the running prompt, as ComfyUI's button does; False if none runs."""
    interrupt = _loaded_attribute("comfy.model_management", "interrupt_current_processing")
    if interrupt is None or following.running_prompt() is None:
        return False
    interrupt(True)
    return True


def is_stop(exc: BaseException) -> bool:
    """Whether this is the exception by which ComfyUI stops a node."""
    kind = _loaded_attribute("comfy.model_management", "InterruptProcessingException")
    return isinstance(kind, type) and isinstance(exc, kind)


def progress() -> Show:
    """Make a callback (done, total, preview) that moves the node's bar, then checks for a stop.

    The preview is shown in the node while it runs.
    """
    bar: Any = None

    def show(done: int, total: int, preview: Image | None = None) -> None:
        nonlocal bar
        make = _loaded_attribute("comfy.utils", "ProgressBar")
        if bar is None and make is not None:
            bar = make(total)  # ComfyUI knows which node runs in this thread
        if bar is not None and preview is None:
            bar.update_absolute(done, total)
        elif bar is not None:
            bar.update_absolute(done, total, ("JPEG", preview, _preview_pixels()))
        check()

    return show


def has_screen() -> bool:
    """Whether a client could show a preview: a run over the API may have none."""
    server = following.server()
    watched = server is None or getattr(server, "client_id", None) is not None
    return watched and _loaded_attribute("comfy.utils", "ProgressBar") is not None


def node_id() -> str | None:
    """The id of the node that runs in this thread."""
    context = _loaded_attribute("comfy_execution.utils", "get_executing_context")
    running = None if context is None else context()
    found = getattr(running, "node_id", None)
    if found is None:
        found = getattr(following.server(), "last_node_id", None)
    return None if found is None else str(found)


def text(message: str) -> None:
    """Show a line of text in the running node, until the next one."""
    server, node = following.server(), node_id()
    send: Callable[..., None] | None = getattr(server, "send_progress_text", None)
    client = getattr(server, "client_id", None)
    if send is not None and node is not None and client is not None:
        send(message, node, client)


def _preview_pixels() -> int:
    found = getattr(_loaded_attribute("comfy.cli_args", "args"), "preview_size", None)
    return found if isinstance(found, int) and found > 0 else PREVIEW_PIXELS


def _loaded_attribute(module: str, name: str) -> Any:
    """An attribute of a ComfyUI module; None if that is not loaded."""
    return getattr(sys.modules.get(module), name, None)
