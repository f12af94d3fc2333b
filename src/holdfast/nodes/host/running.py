"""What a running node uses of ComfyUI: its progress bar, preview, text, number and interrupt.

Covers: showing how far a node is, asking whether it should stop.
Leaves to others: what is shown.
Promise: nothing is imported: what ComfyUI has loaded into this process is used, and where there is
no ComfyUI every function here does nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.nodes.host import following

if TYPE_CHECKING:
    from PIL.Image import Image

PREVIEW_PIXELS = 512  # the longer side of a preview, where ComfyUI's setting is not known


class Show(Protocol):
    """Moves the bar of a node."""

    def __call__(self, done: int, total: int, preview: Image | None = None) -> None:
        """`done` of `total`; raises ComfyUI's exception if somebody wants the node to stop."""
        ...


def check() -> None:
    """Raise ComfyUI's own exception if somebody pressed its button to stop."""
    throw = _of("comfy.model_management", "throw_exception_if_processing_interrupted")
    if throw is not None:
        throw()


def stop() -> bool:
    """Stop the running prompt, as ComfyUI's button does; False where none runs."""
    interrupt = _of("comfy.model_management", "interrupt_current_processing")
    if interrupt is None or following.running_prompt() is None:
        return False
    interrupt(True)
    return True


def is_stop(exc: BaseException) -> bool:
    """Whether that is the exception by which ComfyUI stops a node."""
    kind = _of("comfy.model_management", "InterruptProcessingException")
    return isinstance(kind, type) and isinstance(exc, kind)


def progress() -> Show:
    """To be called with (done, total): moves the bar of the node, then asks for an interrupt.

    A picture that comes along is shown in the node, until it is over.
    """
    bar: Any = None

    def show(done: int, total: int, preview: Image | None = None) -> None:
        nonlocal bar
        make = _of("comfy.utils", "ProgressBar")
        if bar is None and make is not None:
            bar = make(total)  # ComfyUI knows which node runs in this thread
        if bar is not None and preview is None:
            bar.update_absolute(done, total)
        elif bar is not None:
            bar.update_absolute(done, total, ("JPEG", preview, _preview_pixels()))
        check()

    return show


def has_screen() -> bool:
    """Whether somebody could see a preview: a run over the API may have no client."""
    server = following.server()
    watched = server is None or getattr(server, "client_id", None) is not None
    return watched and _of("comfy.utils", "ProgressBar") is not None


def node_id() -> str | None:
    """The number, in its workflow, of the node that runs in this thread."""
    context = _of("comfy_execution.utils", "get_executing_context")
    running = None if context is None else context()
    found = getattr(running, "node_id", None)
    if found is None:
        found = getattr(following.server(), "last_node_id", None)
    return None if found is None else str(found)


def text(message: str) -> None:
    """Show a line in the node that runs; it stays there until the next one."""
    server, node = following.server(), node_id()
    send: Callable[..., None] | None = getattr(server, "send_progress_text", None)
    client = getattr(server, "client_id", None)
    if send is not None and node is not None and client is not None:
        send(message, node, client)


def _preview_pixels() -> int:
    found = getattr(_of("comfy.cli_args", "args"), "preview_size", None)
    return found if isinstance(found, int) and found > 0 else PREVIEW_PIXELS


def _of(module: str, name: str) -> Any:
    """What a module of ComfyUI calls `name`, if it is loaded."""
    return getattr(sys.modules.get(module), name, None)
