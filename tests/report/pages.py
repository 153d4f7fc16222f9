"""What a page has, as a browser would see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Self

_VOID = {"meta", "link", "img", "br"}


@dataclass
class ParsedPage(HTMLParser):
    """:ivar elements: names and attributes of all elements.

    :ivar texts: all texts, but style sheets and data.
    """

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    data: str = ""
    _open: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, page: str) -> Self:
        """Parse a page; each element must be closed in the order of opening."""
        parsed = cls()
        HTMLParser.__init__(parsed)
        parsed.feed(page)
        parsed.close()
        assert parsed._open == []
        return parsed

    @property
    def text(self) -> str:
        """All texts."""
        return " ".join(" ".join(self.texts).split())

    def count(self, name: str) -> int:
        """Number of elements of a name."""
        return sum(element == name for element, _ in self.elements)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"]:
            self.data += data
        elif self._open[-1:] != ["style"]:
            self.texts.append(data)
