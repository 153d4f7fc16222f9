"""HTML in which everything that is not markup of this program is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from ajet_cli.words import number
from ajet_server.page import assets
from ajet_server.page.viewer_page import embedded_json, policy_hash
from ajet_server.page.visible_text import visible

DATA_ID = "ajet-report"
"""Id of the element with the data of the report, which the live page reads to compare runs."""

TEXT_CHARS = 300
NAME_CHARS = 120
"""To these lengths, texts and names of a run are cut."""

_ATTRIBUTE = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")


class Html(str):
    """Markup that is inserted as it is; any other text is escaped."""

    __slots__ = ()


Child = str | None


def tag(name: str, attributes: dict[str, object] | None = None, *children: Child) -> Html:
    """Return an element.

    :param attributes: those that are None are left out.
    :param children: `Html`, or texts, in which nothing stays invisible.
    """
    given = "".join(
        f' {key}="{escaped(str(value))}"'
        for key, value in (attributes or {}).items()
        if value is not None and _ATTRIBUTE.fullmatch(key)
    )
    return Html(f"<{name}{given}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Html:
    """Return elements and texts one after the other."""
    return Html("".join(_html(child) for child in children if child is not None))


def _html(child: str) -> str:
    return child if isinstance(child, Html) else escaped(child)


def escaped(text: str) -> str:
    """Return a text as HTML, also for attributes."""
    return html.escape(visible(text, keep="\n\t"))


def cut(text: str, chars: int) -> str:
    """Return the first `chars` characters of a text, and say how many are left out."""
    left = len(text) - chars
    return text if left <= 0 else f"{text[:chars]} [{left} more characters]"


def between(ends: tuple[float, float] | None) -> str:
    """Return an interval as text, "" if there is none or it is a single value."""
    if ends is None or ends[0] == ends[1]:
        return ""
    return f" ({number(ends[0])} to {number(ends[1])})"


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.0f} %"


def clock(seconds: float | None) -> str:
    """Return Unix seconds as a time in UTC."""
    if not seconds:
        return "-"
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return "-"


def table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], right: str = ""
) -> Html:
    """Return a table.

    :param columns: their titles.
    :param right: the numbers of the columns with numbers, such as "12" for the second and third.
    """
    places = ["right" if str(place) in right else None for place in range(len(columns))]
    head = [
        tag("th", {"scope": "col", "class": place}, title)
        for place, title in zip(places, columns, strict=True)
    ]
    body = [
        tag(
            "tr",
            {},
            *(tag("td", {"class": p}, cell) for p, cell in zip(places, row, strict=True)),
        )
        for row in rows
    ]
    return tag(
        "div",
        {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": caption},
        tag(
            "table",
            {},
            tag("caption", {}, caption),
            tag("thead", {}, tag("tr", {}, *head)),
            tag("tbody", {}, *body),
        ),
    )


def section(title: str, *children: Child) -> Html:
    """Return a section with a heading; nothing if it has no content."""
    given = [child for child in children if child]
    return tag("section", {}, tag("h2", {}, title), *given) if given else Html("")


def items(texts: Iterable[Child], kind: str = "") -> Html:
    """Return a list."""
    return tag("ul", {"class": kind or None}, *(tag("li", {}, text) for text in texts))


def document(
    title: str, style: str, content: Html, data: object, *, refresh: int | None = None
) -> str:
    """Return a page that loads nothing and runs nothing.

    :param style: rules in addition to those of the live page.
    :param data: is embedded for programs.
    :param refresh: seconds after which a browser loads the page again; None for never.
    """
    css = assets.text("ui.css") + style
    allowed = f"default-src 'none'; style-src {policy_hash(css)}"
    policy = f"{allowed}; base-uri 'none'; form-action 'none'"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            *([f'<meta http-equiv="refresh" content="{refresh}">'] if refresh else []),
            f'<meta http-equiv="content-security-policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{escaped(title)}</title>",
            f"<style>{css}</style>",
            "</head>",
            "<body>",
            content,
            f'<script type="application/json" id="{DATA_ID}">{embedded_json(data)}</script>',
            "</body>",
            "</html>",
            "",
        ]
    )
