"""The check that every numeral of a report links to what it comes from."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_VOID = frozenset({"meta", "rect", "line", "circle", "br", "img"})
_UNSHOWN = frozenset({"style", "title"})


class _Numerals(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.linked: list[tuple[str, str]] = []
        self.bare: list[str] = []
        self.defined = 0
        self._open: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if "id" in attributes:
            self.ids.add(attributes["id"])
        if tag not in _VOID:
            self._open.append((tag, attributes))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        numerals = re.findall(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?", data)
        if any(tag in _UNSHOWN for tag, _ in self._open):
            return
        target = next(
            (
                attributes["href"][1:]
                for tag, attributes in reversed(self._open)
                if tag == "a" and "href" in attributes
            ),
            None,
        )
        if target is not None:
            self.linked += [(numeral, target) for numeral in numerals]
        elif any("id" in attributes for _, attributes in self._open):
            self.defined += len(numerals)
        else:
            self.bare += numerals


def unlinked_numerals(page: str) -> tuple[list[str], int]:
    """Return the numerals of a page that link nowhere, and how many there are in all.

    A numeral is linked if it is in a link to an element of the page, or in such an element: a
    definition, a trial, or the registered study.
    """
    parser = _Numerals()
    parser.feed(page)
    parser.close()
    dangling = [numeral for numeral, target in parser.linked if target not in parser.ids]
    total = len(parser.linked) + len(parser.bare) + parser.defined
    return parser.bare + dangling, total
