"""Every metric as a curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Input, Static

from ajet_cli.monitor.filter_field import FilterField
from ajet_cli.monitor.layout import Column, Columns, Glyphs, Line, line
from ajet_cli.monitor.lines import RowsView, text_of
from ajet_cli.monitor.plots import plot, sparkline
from ajet_cli.monitor.step import StepView
from ajet_cli.monitor.view import WatchedView
from ajet_cli.monitor.watch import ServerWatch
from ajet_cli.words import number
from ajet_server.page.models import StepCurves

_NAME, _VALUE = 32, 12


class CurvesView(WatchedView):
    """A list of metrics, and the plot of the one at the cursor."""

    BRIEF = True
    DEFAULT_CSS = """
    CurvesView #plot { height: 50%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", show=False),
        Binding("s", "step", show=False),
    ]
    KEYS = (("/", "filter"), ("s", "step"))

    def __init__(self, watch: ServerWatch, glyphs: Glyphs) -> None:
        super().__init__(watch, glyphs)
        self._plot = Static(id="plot", markup=False)
        self._rows: RowsView[str] = RowsView(glyphs, self._row, name="metrics")
        self._prompt = FilterField()
        self._part = ""

    def body(self) -> Sequence[Widget]:
        """Return the plot and the list."""
        return [Vertical(self._plot, self._rows), self._prompt]

    def load(self) -> None:
        """Show what is known: it comes with the server's state."""
        curves = self.watched.curves
        names = [name for name in (curves.names if curves else ()) if self._part in name]
        self._rows.put(names)
        self._draw_plot()

    def follows(self) -> bool:
        """Return that there may be a new step."""
        return True

    def on_mount(self) -> None:
        """Move with the keyboard."""
        self._rows.focus()

    def on_resize(self, event: Resize) -> None:
        """Draw the plot for another size."""
        del event
        self.call_after_refresh(self._draw_plot)

    def action_filter(self) -> None:
        self._prompt.ask("metrics with", self._part)

    @on(RowsView.Chosen)
    def action_step(self) -> None:
        self.app.push_screen(StepView(self.watched, self.glyphs, metric=self._rows.chosen or ""))

    @on(Input.Submitted)
    def _filtered(self, event: Input.Submitted) -> None:
        self._part = event.value.strip()
        self._prompt.close()
        self._rows.focus()
        self.load()

    @on(RowsView.Moved)
    def _draw_plot(self) -> None:
        curves, name = self.watched.curves, self._rows.chosen
        width, height = self._plot.size
        lines: list[Line]
        if curves is None or name is None:
            nothing = "No metric has this in its name." if self._part else "No step has ended yet."
            lines = [line(nothing, "dim")]
        elif width < 4 or height < 2:
            lines = []
        else:
            values = curves.curves[name].mean if name in curves.curves else []
            drawn = plot(values, curves.steps, width, height - 1, self.glyphs)
            lines = [line(self.glyphs.text(name), "strong"), *(line(each) for each in drawn)]
        self._plot.update(text_of(lines, self.glyphs))

    def _row(self, name: str, width: int) -> Line:
        curves = self.watched.curves
        assert isinstance(curves, StepCurves), "a list of names comes from curves"
        values = curves.curves[name].mean if name in curves.curves else []
        newest = next((value for value in reversed(values) if value is not None), None)
        size = min(_NAME, max(8, width - _VALUE - 2))
        columns = Columns((Column("", size), Column("", _VALUE, right=True)), width, self.glyphs)
        bars = sparkline(values, max(1, width - size - _VALUE - 2), self.glyphs)
        return (
            (columns.row((self.glyphs.text(name), number(newest))), ""),
            (f" {bars}", "good"),
        )
