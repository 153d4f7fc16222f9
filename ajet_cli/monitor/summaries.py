"""The first screens: several servers, and the overview of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Static

from ajet_cli.monitor.curves import CurvesView
from ajet_cli.monitor.episodes import EpisodesView
from ajet_cli.monitor.layout import Column, Columns, Glyphs, Line, Tone, fit, line
from ajet_cli.monitor.lines import LinesView, RowsView, text_of
from ajet_cli.monitor.overview import away, findings_count, headline, newest, overview_lines
from ajet_cli.monitor.step import StepView
from ajet_cli.monitor.view import View, WatchedView
from ajet_cli.monitor.watch import ServerWatch
from ajet_cli.words import number
from ajet_server.page.models import Overview

_COLUMNS = (
    Column("server"),
    Column("step", 6, right=True),
    Column("reward", 8, right=True),
    Column("findings", 8, right=True, keep=False),
    Column("state", 28),
)


class ServersView(View):
    """One row for each server."""

    KEYS = (("enter", "open"), ("r", "ask now"))

    def __init__(self, watches: Sequence[ServerWatch], glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._watches = watches
        self._rows: RowsView[ServerWatch] = RowsView(glyphs, self._row, name="servers")
        self._state = Static(id="state", markup=False)

    def body(self) -> Sequence[Widget]:
        """Return the list, and the whole state of the server at the cursor."""
        return [self._rows, self._state]

    def head(self, width: int) -> list[Line]:
        """Return how many servers answer, and the titles of the list."""
        answering = sum(watch.overview is not None and not watch.failure for watch in self._watches)
        answer = f"{answering} of {len(self._watches)} servers answer"
        columns = Columns(_COLUMNS, max(1, width - 2), self.glyphs)
        return [
            line(fit(answer, width, self.glyphs), "strong"),
            line(f"  {columns.head()}", "dim"),
        ]

    def server_changed(self, watch: ServerWatch) -> None:
        """Show news of a server."""
        del watch
        self.draw_frame()
        self._draw_rows()

    def on_mount(self) -> None:
        """Move with the keyboard."""
        self._rows.focus()

    def on_screen_resume(self) -> None:
        """Show news that came while another screen was in front."""
        self._draw_rows()

    def action_reload(self) -> None:
        for watch in self._watches:
            watch.ask_now()

    def _draw_rows(self) -> None:
        self._rows.put(self._watches)
        self._draw_state()

    def on_resize(self, event: Resize) -> None:
        """Wrap the state for another width."""
        del event
        self._draw_state()

    @on(RowsView.Moved)
    def _draw_state(self) -> None:
        if (watch := self._rows.chosen) is not None:
            lines = headline(watch, self.app.size.width, self.glyphs)
            self._state.update(text_of(lines, self.glyphs))

    @on(RowsView.Chosen)
    def _open(self) -> None:
        if self._rows.chosen is not None:
            self.app.push_screen(OverviewView(self._rows.chosen, self.glyphs))

    def _row(self, watch: ServerWatch, width: int) -> Line:
        columns = Columns(_COLUMNS, width, self.glyphs)
        address = self.glyphs.text(watch.url.partition("://")[2] or watch.url)
        overview = watch.overview
        if overview is None:
            cells, state = [address, "", "", ""], "asking"
        else:
            cells = [
                address,
                number(overview.status.step),
                number(newest(overview, watch.curves, "reward_mean")),
                number(findings_count(overview)),
            ]
            state = _short_state(overview)
        tone: Tone = ""
        if watch.failure:
            state, tone = away(watch, watch.failure, self.glyphs)[0][0].rstrip(": "), "bad"
        elif overview and any(finding.stuck for finding in overview.status.findings):
            tone = "warn"
        return line(columns.row([*cells, state]), tone)


def _short_state(overview: Overview) -> str:
    status = overview.status
    if status.paused is not None:
        return "PAUSED"
    if status.error is not None:
        return "failed"
    if (batch := status.batch) is None:
        return status.state.value
    of = "episodes" if batch.full_by == "episodes" else "tasks"
    return f"{status.state.value}, {batch.ready} of {batch.needed} {of}"


class OverviewView(WatchedView):
    """The overview of a server."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "episodes", show=False),
        Binding("c", "curves", show=False),
        Binding("s", "step", show=False),
    ]
    KEYS = (("e", "episodes"), ("c", "curves"), ("s", "step"), ("r", "ask now"))

    def __init__(self, watch: ServerWatch, glyphs: Glyphs) -> None:
        super().__init__(watch, glyphs)
        self._lines = LinesView(glyphs, name="overview")

    def body(self) -> Sequence[Widget]:
        """Return the lines of the overview."""
        return [self._lines]

    def load(self) -> None:
        """Show what is known: it comes with the server's state."""
        self._lines.show(lambda width: overview_lines(self.watched, width, self.glyphs))

    def server_changed(self, watch: ServerWatch) -> None:
        """Show news of the server."""
        if watch is self.watched:
            self.draw_frame()
            self.load()

    def on_mount(self) -> None:
        """Scroll with the keyboard."""
        self._lines.focus()

    def on_screen_resume(self) -> None:
        """Show news that came while another screen was in front."""
        self.load()

    def action_episodes(self) -> None:
        self.app.push_screen(EpisodesView(self.watched, self.glyphs))

    def action_step(self) -> None:
        self.app.push_screen(StepView(self.watched, self.glyphs))

    def action_curves(self) -> None:
        self.app.push_screen(CurvesView(self.watched, self.glyphs))
