"""Windows that ask before something is done: what to free, a budget, a confirmation, a file.

Escape changes nothing. Errors are shown in the window, which stays open.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Checkbox, Input, Static

from holdfast.base.errors import HoldfastError
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.dashboard.snapshot.snapshot import ModelUse
from holdfast.dashboard.tui import words

Answered = Callable[[Any], None]
ALL = "all"  # as a budget: no limit


class Dialog(ModalScreen[Any]):
    """A modal window. `dismiss(None)` cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "no")]
    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > VerticalScroll { width: 70; max-width: 94%; height: auto; max-height: 90%;
        border: round $primary; background: $surface; padding: 0 1; }
    Dialog .title { text-style: bold; margin-bottom: 1; }
    Dialog .error { color: $error; }
    Dialog .soft { color: $text-muted; }
    Dialog Horizontal { height: auto; align-horizontal: right; }
    Dialog Button { margin: 1 0 0 2; min-width: 10; }
    Dialog Checkbox, Dialog Checkbox:focus { border: none; padding: 0; background: transparent; }
    Dialog Input { margin-top: 1; }
    """

    title_text = ""

    def compose(self) -> ComposeResult:
        """The title, then `content`."""
        with VerticalScroll(can_focus=False):
            yield Static(self.title_text, classes="title", markup=False)
            yield from self.content()

    def content(self) -> ComposeResult:
        """Widgets below the title."""
        yield from ()

    def complain(self, problem: str) -> None:
        """Show an error."""
        self.query_one(".error", Static).update(Text(problem))

    def finish(self, answer: Any) -> None:
        """Close with the answer; show an error."""
        if not self.is_current:
            return
        if isinstance(answer, Exception):
            self.complain(str(answer))
        else:
            self.dismiss(answer)


class FreeDialog(Dialog):
    """What to free; answers with a boolean for each of "caches" and "models"."""

    BINDINGS: ClassVar[list[BindingType]] = [("f", "free", "free")]

    def __init__(self, process: str) -> None:
        super().__init__()
        self.title_text = f"Free memory of {process}"

    def content(self) -> ComposeResult:
        yield Checkbox("caches of pools and devices, and garbage", True, id="caches")
        yield Checkbox("models, which are loaded again when they are used", False, id="models")
        yield Static("", classes="error", markup=False)
        yield Static("space marks, f frees, Escape leaves it as it is", classes="soft")
        with Horizontal():
            yield Button("Free", id="free", variant="warning", compact=True)
            yield Button("Leave", id="leave", compact=True)

    @on(Button.Pressed, "#leave")
    def leave(self) -> None:
        self.dismiss(None)

    @on(Button.Pressed, "#free")
    def action_free(self) -> None:
        chosen = {box.id: box.value for box in self.query(Checkbox)}
        if any(chosen.values()):
            self.dismiss(chosen)
        else:
            self.complain("nothing is marked")


class ConfirmDialog(Dialog):
    """Yes or no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y,enter", "dismiss(True)", "yes"),
        ("n", "dismiss(None)", "no"),
    ]

    def __init__(self, question: str, about: str) -> None:
        super().__init__()
        self.title_text = question
        self._about = about

    def content(self) -> ComposeResult:
        yield Static(self._about, markup=False)
        yield Static("y does it, n or Escape leaves it as it is", classes="soft")


class BudgetDialog(Dialog):
    """Asks for a budget. `ask(bytes or None, then)` changes it."""

    def __init__(
        self, model: ModelUse, sharing: int, ask: Callable[[int | None, Answered], None]
    ) -> None:
        super().__init__()
        self.title_text = f"Budget of {words.plain(model.name)} on {words.plain(model.device)}"
        self._model, self._sharing, self._ask = model, sharing, ask
        self._asking = False

    def content(self) -> ComposeResult:
        model = self._model
        now = "all there is" if model.budget_bytes is None else format_bytes(model.budget_bytes)
        about = f"weights {format_bytes(model.weight_bytes)}, budget now {now}"
        if model.smallest_bytes is not None:
            about += f", at least {format_bytes(model.smallest_bytes)}"
        if self._sharing:
            others = "1 other model" if self._sharing == 1 else f"{self._sharing} other models"
            about += f"; shared with {others}"
        yield Static(about, markup=False)
        yield Input(
            placeholder=f'a size such as "6GB" or "50%" of the weights, or "{ALL}"', id="budget"
        )
        yield Static("", classes="error", markup=False)
        yield Static("enter changes it, Escape leaves it as it is", classes="soft")

    @on(Input.Submitted)
    def change(self, event: Input.Submitted) -> None:
        """Change it; the window closes when that is done."""
        text = event.value.strip()
        if self._asking:
            return
        try:
            of = self._model.weight_bytes
            budget = None if text.lower() == ALL else parse_bytes(text, of=of)
        except HoldfastError as exc:
            self.complain(str(exc))
            return
        self.complain("")
        self._asking = True
        self._ask(budget, self.finish)

    def finish(self, answer: Any) -> None:
        self._asking = False
        super().finish(answer)


class SaveDialog(Dialog):
    """Asks for a file for the timeline. `save(path, then)` writes it."""

    title_text = "Save what was seen so far"

    def __init__(self, name: str, save: Callable[[Path, Answered], None]) -> None:
        super().__init__()
        self._name, self._save = name, save
        self._agreed: str | None = None  # existing file that may be replaced

    def content(self) -> ComposeResult:
        yield Static("a page (.html), or figures (.json, .csv)", markup=False)
        yield Input(self._name, id="file")
        yield Static("", classes="error", markup=False)
        yield Static("enter writes it, Escape does not", classes="soft")

    @on(Input.Submitted)
    def write(self, event: Input.Submitted) -> None:
        """Write it; an existing file is replaced only after a second Enter."""
        text = event.value.strip()
        if not text:
            self.complain("a file needs a name")
            return
        path = Path(text).expanduser()
        if path.exists() and self._agreed != text:
            self._agreed = text
            self.complain(f"{text} is there already; enter once more replaces it")
            return
        self._save(path, self.finish)


HELP = """\
up, down    choose a process      s, S   sort by the next column, turn it
enter       into its tables       1 - 7  tabs
escape      back out              p      pause what is shown (also: space)
t           dark or light         q      quit

f  free caches, or models too     h  the largest blocks in use
b  the budget of the model that   l  look for leaks
   is chosen in tab 2             d  record blocks, so that leaks
i  stop the run under way            can be found, or no more
w  save memory over time since top began: .html, .json, .csv

A click on a heading sorts by it, a second one turns it round.
Curves go from the least to the most that was seen; they begin when
top did. GB/s is what went to devices in the last second or two."""


class HelpDialog(Dialog):
    """All keys."""

    BINDINGS: ClassVar[list[BindingType]] = [("q,enter,question_mark", "dismiss(None)", "back")]
    DEFAULT_CSS = "HelpDialog > VerticalScroll { width: 76; }"
    title_text = "holdfast top"

    def content(self) -> ComposeResult:
        yield Static(HELP, markup=False)
        yield Static("\nEscape goes back", classes="soft")
