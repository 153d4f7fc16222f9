"""Lists of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from ajet_cli.monitor.episode import EpisodeView
from ajet_cli.monitor.filter_field import FilterField
from ajet_cli.monitor.layout import Column, Columns, Glyphs, Line, Tone, fit, line, paragraph
from ajet_cli.monitor.lines import RowsView
from ajet_cli.monitor.view import WatchedView
from ajet_cli.monitor.watch import ServerWatch
from ajet_cli.words import MISSING, clock, duration, number, typed_step
from ajet_server.page.models import EpisodeRow, EpisodeRows

_LIMIT = 200
_STATES = ("", "open", "ended", "aborted", "prepared")
_ORDERS = {
    "newest": "newest first",
    "highest": "highest reward first",
    "lowest": "lowest reward first",
}
_FACTS = (
    Column("task"),
    Column("kind", 5, keep=False),
    Column("state", 8),
    Column("reward", 7, right=True),
    Column("version", 7, right=True, keep=False),
    Column("claimed", 8, keep=False),
    Column("took", 8, right=True, keep=False),
)
_REASONS = (*_FACTS, Column("reason"))
_OUTPUTS = (
    Column("task"),
    Column("state", 8, keep=False),
    Column("reward", 7, right=True),
    Column("calls", 5, right=True, keep=False),
    Column("tokens", 6, right=True),
    Column("repeats", 7, right=True, keep=False),
    Column("ending"),
)


class EpisodesView(WatchedView):
    """The newest episodes, or those of a state, task or step, by reward."""

    BRIEF = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "order", show=False),
        Binding("a", "state", show=False),
        Binding("w", "outputs", show=False),
        Binding("t", "task", show=False),
        Binding("s", "step", show=False),
    ]
    KEYS = (
        ("o", "order"),
        ("a", "state"),
        ("w", "written"),
        ("t", "task"),
        ("s", "step"),
    )

    def __init__(self, watch: ServerWatch, glyphs: Glyphs, step: int | None = None) -> None:
        super().__init__(watch, glyphs)
        self._rows: RowsView[EpisodeRow] = RowsView(glyphs, self._row, name="episodes")
        self._prompt = FilterField()
        self._order = "newest"
        self._in_state = ""
        self._of_task = ""
        self._of_step = step
        self._outputs = False
        self._found: EpisodeRows | None = None

    def body(self) -> Sequence[Widget]:
        """Return the list."""
        return [self._rows, self._prompt]

    def head(self, width: int) -> list[Line]:
        """Return which episodes they are, and the titles of the list."""
        chosen = [f"{self._in_state or 'all'} episodes, {_ORDERS[self._order]}"]
        chosen += [f"task {self.glyphs.text(self._of_task)}"] * bool(self._of_task)
        chosen += [f"step {self._of_step}"] * (self._of_step is not None)
        if self._found is None:
            chosen.append("reading")
        elif not self._found.episodes:
            chosen.append("no episode matches")
        elif self._found.more:
            chosen.append(f"the first {len(self._found.episodes)}")
        lines = super().head(width) + paragraph([(", ".join(chosen), "strong")], width, "  ")
        for ending in self._found.endings[:2] if self._found else ():
            text = f"{ending.episodes} end alike, mean reward {number(ending.reward)}: "
            text = fit(f"{text}{self.glyphs.text(ending.text)}", width, self.glyphs)
            lines.append(line(text, "dim"))
        return [*lines, line(f"  {self._columns(max(1, width - 2)).head()}", "dim")]

    def follows(self) -> bool:
        """Return whether the list is read again: one that someone reads must not move."""
        return self._in_state == "open"

    def load(self) -> None:
        """Read the list."""
        self.reading(self._read())

    def on_mount(self) -> None:
        """Move with the keyboard."""
        self._rows.focus()

    def action_order(self) -> None:
        orders = list(_ORDERS)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        self._again()

    def action_state(self) -> None:
        self._in_state = _STATES[(_STATES.index(self._in_state) + 1) % len(_STATES)]
        self._again()

    def action_outputs(self) -> None:
        self._outputs = not self._outputs
        self._again()

    def action_task(self) -> None:
        self._prompt.ask("task (empty for all)", self._of_task)

    def action_step(self) -> None:
        self._prompt.ask("step (empty for all)", str(self._of_step or ""))

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        typed = event.value.strip()
        self._prompt.close()
        self._rows.focus()
        if self._prompt.what.startswith("task"):
            self._of_task = typed[:256]
        else:
            self._of_step = typed_step(typed)
        self._again()

    @on(RowsView.Chosen)
    def _open(self) -> None:
        if (row := self._rows.chosen) is not None:
            self.app.push_screen(EpisodeView(self.watched, row, self.glyphs))

    def _again(self) -> None:
        self._found = None
        self._rows.put(())
        self.draw_frame()
        self.load()

    async def _read(self) -> None:
        query: dict[str, str | int] = {"order": self._order, "limit": _LIMIT}
        query |= {"state": self._in_state} if self._in_state else {}
        query |= {"task": self._of_task} if self._of_task else {}
        query |= {"step": self._of_step} if self._of_step is not None else {}
        query |= {"outputs": "true"} if self._outputs else {}
        self._found = await self.get("/v1/episodes", EpisodeRows, query)
        self._rows.put(self._found.episodes)

    def _columns(self, width: int) -> Columns:
        reasons = self._found and any(row.reason for row in self._found.episodes)
        columns = _OUTPUTS if self._outputs else _REASONS if reasons else _FACTS
        return Columns(columns, width, self.glyphs)

    def _row(self, row: EpisodeRow, width: int) -> Line:
        text = self.glyphs.text
        reward = number(row.reward)
        state = text(f"{row.state}{': ' if row.cause else ''}{row.cause.replace('_', ' ')}")
        if self._outputs:
            wrote = row.output
            cells = [
                text(row.task_id),
                state,
                reward,
                number(wrote.calls if wrote else None),
                number(wrote.tokens if wrote else None),
                f"{wrote.repeats:.0%}" if wrote else MISSING,
                text(wrote.ending) if wrote else "",
            ]
        else:
            took = duration(row.finished_at - row.claimed_at) if row.finished_at else MISSING
            cells = [
                text(row.task_id),
                text(f"{row.kind} {row.tag}".rstrip()),
                state,
                reward,
                number(row.version),
                clock(row.claimed_at),
                took,
                text(row.reason),
            ]
        tone: Tone = "bad" if row.state == "aborted" else ""
        return line(self._columns(width).row(cells), tone)
