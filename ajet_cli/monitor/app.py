"""The application: it asks the servers, and hands their news to the screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from agentjet.client import AsyncViewClient
from ajet_cli.monitor.layout import Glyphs
from ajet_cli.monitor.summaries import OverviewView, ServersView
from ajet_cli.monitor.view import View
from ajet_cli.monitor.watch import ServerWatch


class MonitorApp(App[None]):
    """The monitor of one server or several.

    :param clients: of the servers; the app closes them.
    :param watching: makes a `ServerWatch` from a client and what to call when it changes.
    """

    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    CSS = """
    Screen { overflow: hidden; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(
        self,
        clients: Sequence[AsyncViewClient],
        glyphs: Glyphs,
        watching: Callable[..., ServerWatch] = ServerWatch,
    ) -> None:
        # The terminal's own colours, whatever it has of them.
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.glyphs = glyphs
        self.watches = [watching(client, self._changed) for client in clients]

    def on_mount(self) -> None:
        """Begin to ask, and show one server, or all of them."""
        if len(self.watches) == 1:
            self.push_screen(OverviewView(self.watches[0], self.glyphs))
        else:
            self.push_screen(ServersView(self.watches, self.glyphs))
        for watch in self.watches:
            self.run_worker(watch.run(), group="watch")

    def _changed(self, watch: ServerWatch) -> None:
        if isinstance(self.screen, View):
            self.screen.server_changed(watch)
