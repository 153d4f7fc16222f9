"""One episode, also while it is open: its messages, calls and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import quote

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Static

from ajet_cli.monitor.conversation import conversation_lines
from ajet_cli.monitor.layout import Column, Columns, Glyphs, Line, Tone, line, paragraph
from ajet_cli.monitor.lines import LinesView, RowsView, text_of
from ajet_cli.monitor.tokens import COLUMNS, Timeline, ViewedCall, ViewedTokens
from ajet_cli.monitor.view import WatchedView
from ajet_cli.monitor.watch import ServerWatch
from ajet_cli.words import MISSING, count, number
from ajet_server.page.models import Conversation, EpisodeRow

_CALLS = (
    Column("call", 5, right=True),
    Column("agent"),
    Column("prompt", 7, right=True),
    Column("sampled", 7, right=True),
    Column("finish", 10),
    Column("policy", 7, right=True, keep=False),
    Column("reward", 8, right=True, keep=False),
    Column("advantage", 9, right=True),
)
_MESSAGES, _CALL_LIST, _TOKENS = "messages", "calls", "tokens"


class EpisodeView(WatchedView):
    """An episode: its messages first."""

    BRIEF = True
    DEFAULT_CSS = """
    EpisodeView ContentSwitcher { height: 1fr; }
    EpisodeView #details { max-height: 8; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "part('messages')", show=False),
        Binding("c", "part('calls')", show=False),
        Binding("t", "part('tokens')", show=False),
        Binding("n", "sampled(1)", show=False),
        Binding("p", "sampled(-1)", show=False),
    ]
    KEYS = (("m", "messages"), ("c", "calls"), ("t", "tokens"), ("n/p", "sampled"))

    def __init__(self, watch: ServerWatch, row: EpisodeRow, glyphs: Glyphs) -> None:
        super().__init__(watch, glyphs)
        self._row = row
        self._said: Conversation | None = None
        self._viewed: ViewedTokens | None = None
        self._timeline: Timeline | None = None
        self._starts: list[int] = []
        self._part = _MESSAGES
        self._messages = LinesView(glyphs, name=_MESSAGES)
        self._calls: RowsView[ViewedCall] = RowsView(glyphs, self._call_row, name=_CALL_LIST)
        self._tokens: RowsView[int] = RowsView(glyphs, self._token_row, name="list")
        self._details = Static(id="details", markup=False)

    def body(self) -> Sequence[Widget]:
        """Return the parts, of which one is shown."""
        tokens = Vertical(self._tokens, self._details, id=_TOKENS)
        return [ContentSwitcher(self._messages, self._calls, tokens, initial=_MESSAGES)]

    def head(self, width: int) -> list[Line]:
        """Return which episode it is, and the titles of a list."""
        lines = super().head(width)
        if self._part == _MESSAGES:
            return lines
        task = self.glyphs.text(self._row.task_id)
        parts = [f"Episode {self.glyphs.text(self._row.episode_id)}, task {task}"]
        parts.append(f"reward {number(self._row.reward)}")
        if self._viewed is None:
            parts.append("reading")
        elif not self._viewed.calls:
            parts.append("no model call has ended yet")
        elif self._part == _TOKENS and self._timeline is not None:
            parts.append(count(len(self._timeline), "token"))
            parts += [f"{self._timeline.cut:,} more left out"] * bool(self._timeline.cut)
        else:
            parts.append(count(len(self._viewed.calls), "call"))
        lines += paragraph([(", ".join(parts), "strong")], width, "  ")
        if self._viewed and self._viewed.text_problem:
            problem = f"Tokens have no texts: {self.glyphs.text(self._viewed.text_problem)}"
            lines += paragraph([(problem, "warn")], width, "  ")
        columns = Columns(
            COLUMNS if self._part == _TOKENS else _CALLS, max(1, width - 2), self.glyphs
        )
        return [*lines, line(f"  {columns.head()}", "dim")]

    def follows(self) -> bool:
        """Return whether the episode may have new calls."""
        return self._row.state in {"open", "prepared"}

    def load(self) -> None:
        """Read the messages, and the tokens once they have been requested."""
        self.reading(self._read())

    def on_mount(self) -> None:
        """Scroll with the keyboard."""
        self._messages.focus()

    def action_part(self, part: str) -> None:
        self._show(part)
        if part != _MESSAGES and self._viewed is None:
            self.load()

    def action_sampled(self, direction: int) -> None:
        if self._part != _TOKENS:
            return
        at = self._tokens.cursor
        if direction > 0:
            following = [start for start in self._starts if start > at]
            self._tokens.move_to(following[0] if following else at)
        else:
            before = [start for start in self._starts if start < at]
            self._tokens.move_to(before[-1] if before else at)

    def action_reload(self) -> None:
        if self._part != _MESSAGES:
            self._viewed = None
        super().action_reload()

    @on(RowsView.Chosen, "#calls")
    def _open_call(self) -> None:
        self._open_timeline(self._calls.cursor)
        self._show(_TOKENS)

    def on_resize(self, event: Resize) -> None:
        """Wrap what is known about a token for another width."""
        del event
        self._draw_details()

    @on(RowsView.Moved, "#list")
    def _draw_details(self) -> None:
        lines: list[Line] = []
        if self._timeline is not None and len(self._timeline):
            lines = self._timeline.details(self._tokens.cursor, self.app.size.width, self.glyphs)
        self._details.update(text_of(lines, self.glyphs))

    def _show(self, part: str) -> None:
        self._part = part
        self.query_one(ContentSwitcher).current = part
        {_MESSAGES: self._messages, _CALL_LIST: self._calls, _TOKENS: self._tokens}[part].focus()
        self.draw_frame()

    async def _read(self) -> None:
        path = f"/v1/timelines/{quote(self._row.episode_id, safe='')}"
        said = await self.get(f"{path}/messages", Conversation)
        self._row = said.episode
        if said != self._said:
            self._said = said
            glyphs = self.glyphs
            self._messages.show_in_thread(lambda width: conversation_lines(said, width, glyphs))
        if self._part != _MESSAGES and self._viewed is None:
            self._viewed = await self.get(f"{path}/page", ViewedTokens)
            self._calls.put(self._viewed.calls)
            self._open_timeline(len(self._viewed.calls) - 1)

    def _open_timeline(self, call: int) -> None:
        """Show the tokens of the timeline of a call, from the first one that it sampled."""
        viewed = self._viewed
        if viewed is None or not 0 <= call < len(viewed.calls):
            self._timeline, self._starts = None, []
            self._tokens.put(())
            return
        timeline = Timeline(viewed, call)
        self._timeline, self._starts = timeline, timeline.sampled()
        self._tokens.cursor = timeline.first_of(call)
        self._tokens.put(range(len(timeline)))
        self._draw_details()

    def _call_row(self, call: ViewedCall, width: int) -> Line:
        columns = Columns(_CALLS, width, self.glyphs)
        versions = [str(version) for version, _ in call.versions]
        cells = [
            str(call.index),
            self.glyphs.text(call.agent) or "unnamed",
            number(call.prompt),
            number(len(call.logprobs)),
            self.glyphs.text(call.finish),
            "-".join(dict.fromkeys((versions[0], versions[-1]))) if versions else MISSING,
            number(call.reward),
            "untrained" if call.advantage is None else f"{call.advantage:+.4g}",
        ]
        return line(columns.row(cells))

    def _token_row(self, position: int, width: int) -> Line:
        assert self._timeline is not None, "rows are those of a timeline"
        cells = self._timeline.row(position, self.glyphs)
        tone: Tone = "good" if cells[3] == "trained" else "dim" if cells[3] == "context" else ""
        return line(Columns(COLUMNS, width, self.glyphs).row(cells), tone)
