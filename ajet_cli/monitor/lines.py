"""Widgets that show lines of text: of any number of lines, only those on the screen are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.worker import get_current_worker

from ajet_cli.monitor.layout import Glyphs, Line, Tone

T = TypeVar("T")

_STYLES: dict[Tone, Style] = {
    "": Style.null(),
    "strong": Style(bold=True),
    "dim": Style(dim=True),
    "good": Style(color="green"),
    "warn": Style(color="yellow"),
    "bad": Style(color="red", bold=True),
}
_CURSOR = Style(reverse=True)


def strip_of(line: Line, width: int, glyphs: Glyphs, *, cursor: bool = False) -> Strip:
    """Return a line as what is drawn, in exactly `width` cells."""
    # Whatever a text is made of, no control character reaches the terminal.
    segments = [Segment(glyphs.text(text), _STYLES[tone]) for text, tone in line]
    strip = Strip(segments).adjust_cell_length(width)
    return strip.apply_style(_CURSOR) if cursor else strip


def text_of(lines: Sequence[Line], glyphs: Glyphs) -> Text:
    """Return lines as what a `Static` shows."""
    text = Text(end="", no_wrap=True)
    for at, line in enumerate(lines):
        text.append("\n" * (at > 0))
        for part, tone in line:
            text.append(glyphs.text(part), _STYLES[tone])
    return text


class LinesView(ScrollView):
    """Scrollable lines, rebuilt for each width."""

    DEFAULT_CSS = """
    LinesView { scrollbar-size: 0 0; overflow-x: hidden; height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", show=False),
        Binding("k", "scroll_up", show=False),
        Binding("space", "page_down", show=False),
        Binding("g", "scroll_home", show=False),
        Binding("G", "scroll_end", show=False),
    ]

    class Scrolled(Message):
        """Other lines are on the screen."""

    def __init__(self, glyphs: Glyphs, *, name: str) -> None:
        super().__init__(id=name)
        self.glyphs = glyphs
        self.lines: Sequence[Line] = ()
        self._build: Callable[[int], Sequence[Line]] | None = None
        self._in_thread = False
        self._built_width = 0

    def show(self, build: Callable[[int], Sequence[Line]]) -> None:
        """Show the lines that `build` returns for a width; it is called again for another width."""
        self._build, self._in_thread = build, False
        self._rebuild()

    def show_in_thread(self, build: Callable[[int], Sequence[Line]]) -> None:
        """Do the same with lines that take long to build."""
        self._build, self._in_thread = build, True
        self._rebuild()

    def render_line(self, y: int) -> Strip:
        """Return a line of the screen."""
        at = self.scroll_offset.y + y
        width = self.size.width
        if at >= self.count:
            return Strip.blank(width)
        return self.draw(at, width)

    @property
    def count(self) -> int:
        """The number of lines."""
        return len(self.lines)

    def draw(self, at: int, width: int) -> Strip:
        """Return a line, drawn."""
        return strip_of(self.lines[at], width, self.glyphs)

    def shown(self) -> str:
        """Return which lines are on the screen; "" if all are."""
        if self.count <= self.size.height:
            return ""
        first = self.scroll_offset.y + 1
        return f"{first:,}-{min(self.count, first + self.size.height - 1):,}/{self.count:,}"

    def on_resize(self, event: Resize) -> None:
        """Build the lines for another width."""
        del event
        if self._width != self._built_width:
            self._rebuild()
        self.post_message(self.Scrolled())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Report that other lines are on the screen."""
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Scrolled())

    @property
    def _width(self) -> int:
        return self.size.width or self.app.size.width

    def _rebuild(self) -> None:
        build, width = self._build, self._width
        if build is None:
            return
        self._built_width = width
        if not self._in_thread:
            self._put(build(width))
            return

        def put(lines: Sequence[Line]) -> None:
            # Meanwhile something else may be shown.
            if build is self._build:
                self._put(lines)

        def work() -> None:
            lines = build(width)
            if not get_current_worker().is_cancelled:
                self.app.call_from_thread(put, lines)

        self.run_worker(work, thread=True, exclusive=True, group="build")

    def _put(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        self._recount()

    def _recount(self) -> None:
        self.virtual_size = Size(self._width, self.count)
        self.refresh()
        self.post_message(self.Scrolled())


class RowsView(LinesView, Generic[T]):
    """A list with a cursor. Rows are drawn when they come into sight.

    :param draw: returns a row for a width of so many cells.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "first", show=False),
        Binding("end,G", "last", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Moved(Message):
        """The cursor is on another row."""

        def __init__(self, view: Widget) -> None:
            super().__init__()
            self.view = view

        @property
        def control(self) -> Widget:
            """The list, for ``@on``."""
            return self.view

    class Chosen(Moved):
        """A row was chosen."""

    def __init__(self, glyphs: Glyphs, draw: Callable[[T, int], Line], *, name: str) -> None:
        super().__init__(glyphs, name=name)
        self.rows: Sequence[T] = ()
        self.cursor = 0
        self._draw_row = draw

    def put(self, rows: Sequence[T]) -> None:
        """Show rows; the cursor stays at the same place of the list."""
        self.rows = rows
        self.cursor = max(0, min(self.cursor, len(rows) - 1))
        self._recount()
        self._keep_in_sight()

    @property
    def chosen(self) -> T | None:
        """The row at the cursor."""
        return self.rows[self.cursor] if self.rows else None

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def draw(self, at: int, width: int) -> Strip:
        """Return a row, with a mark at the cursor, which is seen without colours."""
        marked = at == self.cursor
        mark = f"{self.glyphs.cursor} " if marked else "  "
        drawn = self._draw_row(self.rows[at], max(1, width - len(mark)))
        return strip_of(((mark, ""), *drawn), width, self.glyphs, cursor=marked and self.has_focus)

    def move_to(self, at: int) -> None:
        """Put the cursor on a row."""
        at = max(0, min(at, len(self.rows) - 1))
        if at != self.cursor:
            self.cursor = at
            self.refresh()
            self.post_message(self.Moved(self))
        self._keep_in_sight()

    def action_move(self, rows: int) -> None:
        self.move_to(self.cursor + rows)

    def action_page(self, pages: int) -> None:
        self.move_to(self.cursor + pages * max(1, self.size.height - 1))

    def action_first(self) -> None:
        self.move_to(0)

    def action_last(self) -> None:
        self.move_to(len(self.rows) - 1)

    def action_choose(self) -> None:
        if self.rows:
            self.post_message(self.Chosen(self))

    def on_click(self, event: Click) -> None:
        """Put the cursor where the mouse is; choose the row at the second click."""
        at = event.y + self.scroll_offset.y
        if at < len(self.rows):
            again = at == self.cursor
            self.move_to(at)
            if again:
                self.action_choose()

    def on_resize(self, event: Resize) -> None:
        """Keep the cursor in sight."""
        del event
        self._recount()
        self._keep_in_sight()

    def _keep_in_sight(self) -> None:
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, force=True)
