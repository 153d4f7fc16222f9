"""What all screens of the monitor have: the server's state above, the keys below."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import ClassVar, TypeVar

from pydantic import BaseModel
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static
from textual.worker import Worker

from ajet_cli.monitor.layout import Glyphs, Line, Tone, fit, line, paragraph
from ajet_cli.monitor.lines import LinesView, text_of
from ajet_cli.monitor.overview import headline
from ajet_cli.monitor.watch import ServerWatch, problem
from ajet_core.errors import AjetError

A = TypeVar("A", bound=BaseModel)


class View(Screen[None]):
    """A screen with lines above and below a body.

    :cvar KEYS: keys that the last line names, each with what it does.
    """

    DEFAULT_CSS = """
    View Static { height: auto; width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "back", show=False),
        Binding("r", "reload", show=False),
        Binding("question_mark", "help", show=False),
    ]
    KEYS: ClassVar[Sequence[tuple[str, str]]] = ()

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self.glyphs = glyphs
        self._head = Static(id="head", markup=False)
        self._foot = Static(id="foot", markup=False)

    def compose(self) -> ComposeResult:
        yield self._head
        yield from self.body()
        yield self._foot

    def body(self) -> Sequence[Widget]:
        """Return what is between the lines above and below."""
        raise NotImplementedError

    def head(self, width: int) -> list[Line]:
        """Return the lines above."""
        raise NotImplementedError

    def server_changed(self, watch: ServerWatch) -> None:
        """Show news of a server."""
        raise NotImplementedError

    def on_mount(self) -> None:
        """Show the lines above and below."""
        self.draw_frame()

    def on_resize(self, event: Resize) -> None:
        """Wrap the lines above and below for another width."""
        del event
        self.draw_frame()

    def on_screen_resume(self) -> None:
        """Show news that came while another screen was in front."""
        self.draw_frame()

    def on_lines_view_scrolled(self) -> None:
        """Say which lines are on the screen."""
        self._draw_foot()

    def draw_frame(self) -> None:
        """Draw the lines above and below."""
        self._head.update(text_of(self.head(self.app.size.width), self.glyphs))
        self._draw_foot()

    def _draw_foot(self) -> None:
        parts: list[tuple[str, Tone]] = []
        last = ("esc", "back") if len(self.app.screen_stack) > 2 else ("q", "quit")
        for key, what in (*self.KEYS, ("?", "help"), last):
            parts += [(key, "strong"), (f" {what}  ", "dim")]
        shown = next((view.shown() for view in self.query(LinesView) if view.display), "")
        parts.append((shown, "dim"))
        self._foot.update(text_of(paragraph(parts, self.app.size.width), self.glyphs))

    def action_back(self) -> None:
        # The first two are the app's own empty screen, and the one that it starts with.
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()

    def action_reload(self) -> None:
        raise NotImplementedError

    def action_help(self) -> None:
        self.app.push_screen(HelpView(self.glyphs))


class WatchedView(View):
    """A screen about one server.

    :cvar BRIEF: whether the sentence is left out, for want of space.
    """

    BRIEF: ClassVar[bool] = False

    def __init__(self, watch: ServerWatch, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self.watched = watch
        self.note = ""
        self._failed = False
        self._reader: Worker[None] | None = None

    def head(self, width: int) -> list[Line]:
        """Return the server's state, and why what is below is missing or old."""
        lines = headline(self.watched, width, self.glyphs, sentence=not self.BRIEF)
        if self.note:
            lines += paragraph([("! ", "warn"), (self.glyphs.text(self.note), "")], width, "  ")
        return lines

    def server_changed(self, watch: ServerWatch) -> None:
        """Show news of the server."""
        if watch is not self.watched:
            return
        self.draw_frame()
        # A read that takes longer than the server is asked again must come to its end.
        busy = self._reader is not None and not self._reader.is_finished
        if watch.failure is None and not busy and (self._failed or self.follows()):
            self.load()

    def follows(self) -> bool:
        """Return whether what is shown may change, so that it is read again with each answer."""
        return False

    def load(self) -> None:
        """Read what the screen shows, while it stays usable."""

    def on_mount(self) -> None:
        """Read what the screen shows."""
        self.load()

    def action_reload(self) -> None:
        self.watched.ask_now()
        self.load()

    def reading(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` in place of what was begun before, and show its error."""

        async def guarded() -> None:
            try:
                await work
            except AjetError as error:
                self._failed = True
                self.note = problem(error)
            else:
                self._failed, self.note = False, ""
            self.draw_frame()

        self._reader = self.run_worker(guarded(), exclusive=True, group="read")

    async def get(
        self, path: str, answer: type[A], query: Mapping[str, str | int] | None = None
    ) -> A:
        """Return a route's answer."""
        return await self.watched.client.get(path, answer, query)


_HELP = """\
up, down, page up, page down, home, end: move (also k, j, space, g, G)
enter: open what the cursor is on
esc: back (also backspace)
r: ask the server at once
q: quit (also Ctrl-C)

Overview  e episodes, c curves, s step
Curves    / a part of the name, s or enter: the newest step
Step      p, n another step, s type its number, / a part of the name, e episodes
Episodes  o order, a state, w what the model wrote, t task, s step
Episode   m messages, c calls, t tokens; enter on a call shows its tokens
Tokens    n, p the next and the previous tokens that a call sampled

What is shown is what a server said last. It is asked again every 5 seconds,
or less often if many ask. The monitor changes nothing.

Characters that a terminal would obey or hide are written as \\u001b.
With a mouse, hold Shift to select text."""


class HelpView(View):
    """The keys."""

    def body(self) -> Sequence[Widget]:
        """Return the text."""
        self._lines = LinesView(self.glyphs, name="help")
        return [self._lines]

    def head(self, width: int) -> list[Line]:
        """Return the title."""
        return [line(fit("ajet monitor", width, self.glyphs), "strong")]

    def server_changed(self, watch: ServerWatch) -> None:
        """Stay as it is."""

    def on_mount(self) -> None:
        """Show the text."""
        self._lines.show(self._text)

    def action_reload(self) -> None:
        pass

    def action_help(self) -> None:
        self.action_back()

    def _text(self, width: int) -> list[Line]:
        return [each for text in _HELP.split("\n") for each in paragraph([(text, "")], width)]
