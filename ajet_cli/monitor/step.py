"""All metrics of a step, beside those of the step before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from ajet_cli.monitor.episodes import EpisodesView
from ajet_cli.monitor.filter_field import FilterField
from ajet_cli.monitor.layout import Column, Columns, Glyphs, Line, line, paragraph
from ajet_cli.monitor.lines import RowsView
from ajet_cli.monitor.view import WatchedView
from ajet_cli.monitor.watch import ServerWatch
from ajet_cli.monitor.words import MISSING, date, number, typed_step
from ajet_server.page.models import StepCurves

_VALUE = 12


class StepView(WatchedView):
    """A list of the metrics of a step, the newest one until another is chosen.

    :param step: None for the newest one.
    :param metric: the one that the cursor is on first.
    """

    BRIEF = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p,left", "other(-1)", show=False),
        Binding("n,right", "other(1)", show=False),
        Binding("s", "choose", show=False),
        Binding("slash", "filter", show=False),
        Binding("e", "episodes", show=False),
    ]
    KEYS = (("p/n", "step"), ("s", "another"), ("/", "filter"), ("e", "episodes"))

    def __init__(
        self, watch: ServerWatch, glyphs: Glyphs, step: int | None = None, metric: str = ""
    ) -> None:
        super().__init__(watch, glyphs)
        self._rows: RowsView[str] = RowsView(glyphs, self._row, name="metrics")
        self._prompt = FilterField()
        self._chosen = step
        self._part = ""
        self._metric = metric
        # What is shown, and of which step.
        self._curves: StepCurves | None = None
        self._shown: int | None = None

    def body(self) -> Sequence[Widget]:
        """Return the list."""
        return [self._rows, self._prompt]

    def head(self, width: int) -> list[Line]:
        """Return which step it is, and the titles of the list."""
        lines = super().head(width) + paragraph([(self._title(), "strong")], width, "  ")
        return [*lines, line(f"  {self._columns(max(1, width - 2)).head()}", "dim")]

    def _title(self) -> str:
        curves, shown = self._curves, self._shown
        if curves is None or shown is None:
            none = self.watched.curves is not None and self._step is None
            return "No step has ended yet." if none else "reading"
        if shown not in curves.steps:
            return f"This run has no step {shown}."
        newest = f" of {self._newest}" if self._newest else ""
        ended = date(curves.times[curves.steps.index(shown)])
        nothing = "" if self._rows.rows else ", no metric has this in its name"
        return f"Step {shown}{newest}, ended {ended}{nothing}"

    def follows(self) -> bool:
        """Return whether a new step takes the place of the one that is shown."""
        return self._chosen is None

    def load(self) -> None:
        """Read the metrics."""
        if self._step is not None:
            self.reading(self._read())

    def on_mount(self) -> None:
        """Move with the keyboard."""
        self._rows.focus()

    def action_other(self, steps: int) -> None:
        newest = self._newest
        if (step := self._step) is None or newest is None:
            return
        # At the newest one, those that follow are shown when they come.
        self._go(step + steps if 0 < step + steps < newest else 1 if step + steps < 1 else None)

    def action_choose(self) -> None:
        self._prompt.ask("step (empty for the newest)", str(self._chosen or ""))

    def action_filter(self) -> None:
        self._prompt.ask("metrics with", self._part)

    def action_episodes(self) -> None:
        if (step := self._step) is not None:
            self.app.push_screen(EpisodesView(self.watched, self.glyphs, step))

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        self._prompt.close()
        self._rows.focus()
        if self._prompt.what.startswith("step"):
            self._go(typed_step(event.value))
        else:
            self._part = event.value.strip()
            self._list()

    def _go(self, step: int | None) -> None:
        if step != self._chosen:
            # The cursor stays on its metric.
            self._metric = self._rows.chosen or self._metric
            self._chosen, self._curves, self._shown = step, None, None
            self._list()
            self.load()

    @property
    def _newest(self) -> int | None:
        """The last step that has ended; None if there is none, or the server has not answered."""
        curves = self.watched.curves
        return curves.steps[-1] if curves and curves.steps else None

    @property
    def _step(self) -> int | None:
        """The step to show."""
        return self._newest if self._chosen is None else self._chosen

    async def _read(self) -> None:
        read: int | None = None
        # Again if a newer one ends meanwhile.
        while (step := self._step) is not None and step != read:
            query: dict[str, str | int] = {"after": max(0, step - 2), "until": step, "points": 2}
            self._curves = await self.get("/v1/steps", StepCurves, query)
            self._shown = read = step
            self._list()

    def _list(self) -> None:
        curves = self._curves
        self._rows.put(
            [
                name
                for name in (curves.names if curves else ())
                if self._part in name and self._values(name) != (None, None)
            ]
        )
        if self._metric in self._rows.rows:
            self._rows.move_to(self._rows.rows.index(self._metric))
            self._metric = ""
        self.draw_frame()

    def _values(self, name: str) -> tuple[float | None, float | None]:
        """Return a metric of the step before, and of the step."""
        curves, step = self._curves, self._shown
        if curves is None or step is None or name not in curves.curves:
            return None, None
        of = dict(zip(curves.steps, curves.curves[name].mean, strict=True))
        return of.get(step - 1), of.get(step)

    def _columns(self, width: int) -> Columns:
        step = self._step if self._shown is None else self._shown
        before = f"step {step - 1}" if step is not None and step > 1 else ""
        now = "" if step is None else f"step {step}"
        columns = (
            Column("metric"),
            Column(before, _VALUE, right=True),
            Column(now, _VALUE, right=True),
            Column("change", _VALUE, right=True, keep=False),
        )
        return Columns(columns, width, self.glyphs)

    def _row(self, name: str, width: int) -> Line:
        before, now = self._values(name)
        if before is None or now is None:
            change = MISSING
        else:
            change = f"{'+' if now > before else ''}{number(now - before)}"
        cells = [self.glyphs.text(name), number(before), number(now), change]
        return line(self._columns(width).row(cells), "dim" if now == before else "")
