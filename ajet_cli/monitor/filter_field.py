"""A line that is typed: a filter."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Input


class FilterField(Input):
    """A field that is shown only while something is typed. Escape leaves what was chosen before."""

    DEFAULT_CSS = """
    FilterField { border: none; height: 1; padding: 0; display: none; }
    FilterField:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "give_up", show=False)]

    def __init__(self) -> None:
        super().__init__(compact=True)
        self.what = ""
        self._before = ""

    def ask(self, what: str, value: str) -> None:
        """Show the field.

        :param what: the placeholder, shown while the field is empty.
        """
        self.what = what
        self._before = value
        self.placeholder = what
        self.value = value
        self.display = True
        # At once, so that the next key is typed into it.
        self.screen.set_focus(self)

    def close(self) -> None:
        """Hide the field."""
        self.display = False

    async def action_give_up(self) -> None:
        self.value = self._before
        await self.action_submit()
