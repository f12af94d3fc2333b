"""Keys of `top` that act on the selected process: holders, leaks, freeing, budget, stop.

An error of the process is shown as it is, and ends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.app import App
from textual.message import Message

from holdfast.base.errors import HoldfastError, NotFound, Unsupported
from holdfast.dashboard.ipc.watching import Watches
from holdfast.dashboard.snapshot.snapshot import ModelUse
from holdfast.dashboard.tui import dialogs, timeline, words
from holdfast.dashboard.tui.details import Details, Requested
from holdfast.dashboard.tui.looking import Actor, Answer, Then
from holdfast.dashboard.tui.session import Session, Watched
from holdfast.dashboard.tui.table import SteadyTable


class Acted(Message):
    """A request has finished."""

    def __init__(self, then: Then, answer: Answer) -> None:
        super().__init__()
        self.then, self.answer = then, answer


class ActingApp(App[int]):
    """Base of TopApp: the keys that act on a process."""

    def __init__(self, watcher: Watches) -> None:
        super().__init__()
        self.watcher = watcher
        self.session = Session()
        self.actor = Actor(lambda then, answer: self.post_message(Acted(then, answer)))

    def on_acted(self, event: Acted) -> None:
        """Hand the answer to its callback."""
        if not self.gone:
            event.then(event.answer)

    @property
    def gone(self) -> bool:
        """Whether the screen is closing."""
        return not self.query("#title")

    @property
    def chosen(self) -> Watched | None:
        """The selected process."""
        key = self.query_one("#processes", SteadyTable).chosen
        return self.session.watched.get(key) if key else None

    # ---- keys

    def action_holders(self) -> None:
        """The largest blocks in use."""
        self._fill("holders")

    def action_leaks(self) -> None:
        """Look for leaks now."""
        self._fill("leaks")

    def _fill(self, tab: Requested) -> None:
        details, one = self.query_one(Details), self.chosen
        details.open(tab)
        key = one.key if one else ""
        self._ask(lambda there: getattr(there, tab)(), lambda found: details.fill(tab, key, found))

    def action_debugging(self) -> None:
        """Switch memory debugging."""
        one = self.chosen
        wanted = not (one is not None and one.process.leaks.debugging)
        said = "blocks are recorded from now on" if wanted else "blocks are recorded no more"
        self._ask(lambda there: there.set_debugging(wanted), lambda _: self._say(said))

    def action_free(self) -> None:
        """Ask what, then free it."""
        one = self.chosen
        if one is None:
            self._complain(_nobody())
            return

        def free(chosen: dict[str, bool] | None) -> None:
            if chosen is not None:
                self._ask(
                    lambda there: there.free(**chosen, garbage=chosen["caches"]),
                    lambda freed: self._say(f"freed {freed.text}"),
                    one,
                )

        self.push_screen(dialogs.FreeDialog(_named(one)), free)

    def action_interrupt(self) -> None:
        """Ask, then stop the run."""
        one = self.chosen
        if one is None or one.process.run is None:
            self._complain(_nobody() if one is None else NotFound(f"{_named(one)} runs nothing"))
            return

        def interrupt(sure: bool | None) -> None:
            if sure:
                self._ask(
                    lambda there: there.interrupt(),
                    lambda was: self._say("the run is being stopped" if was else "nothing runs"),
                    one,
                )

        about = "It ends after the step under way; what it has drawn so far is lost."
        question = f"Stop the run of {_named(one)}?"
        self.push_screen(dialogs.ConfirmDialog(question, about), interrupt)

    def action_budget(self) -> None:
        """Ask how much, then change it."""
        one, model = self.chosen, self._chosen_model()
        if one is None or isinstance(model, HoldfastError):
            self._complain(model if isinstance(model, HoldfastError) else _nobody())
            return

        def ask(budget: int | None, then: Then) -> None:
            self._ask_plainly(one, lambda there: there.set_budget(model.id, budget), then)

        def changed(now: ModelUse | None) -> None:
            if now is not None:
                size = words.size(now.budget_bytes) if now.budget_bytes is not None else "none"
                self._say(f"the budget of {now.name} is {size} now")

        others = [m for m in one.process.models if m.group == model.group and m.id != model.id]
        sharing = len(others) if model.group is not None else 0
        self.push_screen(dialogs.BudgetDialog(model, sharing, ask), changed)

    def _chosen_model(self) -> ModelUse | HoldfastError:
        """The model under the cursor, else the first whose budget can be changed."""
        one = self.chosen
        if one is None:
            return _nobody()
        found, details = one.process.models, self.query_one(Details)
        by_cursor = [m for m in found if details.tab == "models" and m.id == details.chosen_model]
        adjustable = [m for m in found if m.adjustable]
        for model in [*by_cursor, *adjustable]:
            if model.adjustable:
                return model
            return Unsupported(
                f"the budget of {words.plain(model.name)} cannot be changed while it lives",
                hint="load it with a budget: holdfast.residency.manage(model, budget=...)",
            )
        return NotFound(f"{_named(one)} has no model whose budget can be changed")

    def action_save(self) -> None:
        """Ask where to, then write a timeline."""

        def save(path: Path, then: Then) -> None:
            document = timeline.document(self.session)  # in this thread, which alone changes it
            self.actor.ask(lambda: timeline.write(document, path), then)

        def saved(path: Path | None) -> None:
            if path is not None:
                self._say(f"saved {path}")

        self.push_screen(dialogs.SaveDialog(timeline.NAME, save), saved)

    # ---- asking a process

    def _ask(self, call: Callable[[Any], Any], then: Then, one: Watched | None = None) -> None:
        """Send a request to the selected process; shows errors, passes answers to `then`."""
        one = one or self.chosen
        if one is None:
            self._complain(_nobody())
            return

        def answered(answer: Any) -> None:
            if isinstance(answer, Exception):
                self._complain(answer)
            else:
                then(answer)

        self._ask_plainly(one, call, answered)

    def _ask_plainly(self, one: Watched, call: Callable[[Any], Any], then: Then) -> None:
        def work() -> Any:
            if one.state == "ended":
                raise NotFound(f"process {one.process.pid} has ended")
            with self.watcher.attached(one.process.pid) as there:
                return call(there)

        self.actor.ask(work, then)

    def _say(self, text: str) -> None:
        self.notify(words.plain(text), markup=False)

    def _complain(self, problem: Exception) -> None:
        lines = [words.plain(line) for line in str(problem).splitlines()]
        self.notify("\n".join(lines), severity="error", markup=False)


def _nobody() -> NotFound:
    return NotFound("no process is chosen")


def _named(one: Watched) -> str:
    return f"{one.process.pid} ({words.short(one.process.name, 30)})"
