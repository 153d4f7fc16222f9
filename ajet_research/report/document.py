"""A document whose text cannot hold a bare number.

Text is given without digits. A number is given by the name of its definition, to which it links;
the definitions, with formulas and trials, are a table of the same document.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_DIGITS = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1b1b; background: #fff }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: left; vertical-align: top }
blockquote { border-left: 3px solid #888; margin: 1rem 0; padding: 0 1rem }
pre { background: #f4f4f4; padding: 1rem; overflow-x: auto }
a { color: #0645ad; text-decoration: none } a:hover { text-decoration: underline }
tr:target { background: #fff4c2 } svg { max-width: 100%; height: auto }
"""


@dataclass(frozen=True, slots=True)
class Text:
    """Words without digits.

    :raises ValueError: there is a digit.
    """

    content: str

    def __post_init__(self) -> None:
        if re.search(r"\d", self.content):
            raise ValueError(f"a bare numeral in the text of a report: {self.content!r}")


@dataclass(frozen=True, slots=True)
class Reference:
    """Text of any kind that links to the element with the id `target`."""

    content: str
    target: str


@dataclass(frozen=True, slots=True)
class Quote:
    """Registered text of the author's, whose numerals link to the registered study."""

    content: str
    target: str


@dataclass(frozen=True, slots=True)
class Exact:
    """Text of any kind, in a row that defines what others link to."""

    content: str


Span = Text | Reference | Quote | Exact
Cell = Sequence[Span]


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table. With an `id` it defines what others link to, and may hold `Exact` text.

    :raises ValueError: it has such text and no id.
    """

    cells: Sequence[Cell]
    id: str = ""

    def __post_init__(self) -> None:
        if not self.id and any(isinstance(span, Exact) for cell in self.cells for span in cell):
            raise ValueError("a row without an id has numerals")


@dataclass(slots=True)
class Document:
    """A document under construction, rendered as Markdown and as one HTML page."""

    title: str
    _markdown: list[str] = field(default_factory=list)
    _html: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """Add a heading."""
        _ = Text(text)
        self._markdown.append(f"## {text}")
        self._html.append(f"<h2>{html.escape(text)}</h2>")

    def paragraph(self, *spans: Span, quoted: bool = False) -> None:
        """Add a paragraph."""
        markdown, page = _markdown(spans), _page(spans)
        self._markdown.append(f"> {markdown}" if quoted else markdown)
        self._html.append(f"<blockquote>{page}</blockquote>" if quoted else f"<p>{page}</p>")

    def items(self, items: Iterable[Cell]) -> None:
        """Add a list."""
        listed = list(items)
        self._markdown.append("\n".join(f"- {_markdown(item)}" for item in listed))
        page = "".join(f"<li>{_page(item)}</li>" for item in listed)
        self._html.append(f"<ul>{page}</ul>")

    def table(self, header: Sequence[str], rows: Iterable[TableRow]) -> None:
        """Add a table."""
        lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
        page = "".join(f"<th>{html.escape(Text(name).content)}</th>" for name in header)
        body = []
        for row in rows:
            # Markdown has no ids: an empty anchor takes their place.
            anchor = f'<a id="{row.id}"></a>' if row.id else ""
            cells = [_markdown(cell).replace("|", "\\|") for cell in row.cells]
            lines.append(f"| {anchor}{' | '.join(cells)} |")
            own = f' id="{row.id}"' if row.id else ""
            body.append(f"<tr{own}>{''.join(f'<td>{_page(cell)}</td>' for cell in row.cells)}</tr>")
        self._markdown.append("\n".join(lines))
        self._html.append(
            f"<table><thead><tr>{page}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        )

    def source(self, id_: str, text: str) -> None:
        """Add the text of a file, word for word, that others link to."""
        self._markdown.append(f'<a id="{id_}"></a>\n\n```json\n{text}\n```')
        self._html.append(f'<pre id="{id_}">{html.escape(text)}</pre>')

    def figure(self, svg: str, alt: str, path: str, data: str) -> None:
        """Add a picture, which is the file `path` too, with a link to its data beside it."""
        _ = Text(alt)
        self._markdown.append(f"![{alt}]({path}) ([data]({data}))")
        self._html.append(
            f'<figure>{svg}<figcaption>{html.escape(alt)} <a href="{data}">(data)</a>'
            "</figcaption></figure>"
        )

    def markdown(self) -> str:
        """Return the document as Markdown."""
        return "\n\n".join([f"# {self.title}", *self._markdown]) + "\n"

    def html(self) -> str:
        """Return the document as one HTML page, which loads nothing."""
        body = "\n".join(self._html)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style></head>\n<body>\n"
            f"<h1>{html.escape(Text(self.title).content)}</h1>\n{body}\n</body></html>\n"
        )


def _markdown(spans: Iterable[Span]) -> str:
    parts = []
    for span in spans:
        match span:
            case Reference():
                parts.append(f"[{_escaped(span.content)}](#{span.target})")
            case Quote():
                text = _escaped(" ".join(span.content.split()))
                parts.append(_DIGITS.sub(rf"[\g<0>](#{span.target})", text))
            case Text() | Exact():
                parts.append(_escaped(span.content))
    return "".join(parts)


def _escaped(text: str) -> str:
    """Return text in which Markdown and HTML mean nothing."""
    return re.sub(r"([\\`*_\[\]<>&#])", r"\\\1", text)


def _page(spans: Iterable[Span]) -> str:
    parts = []
    for span in spans:
        match span:
            case Reference():
                parts.append(f'<a href="#{span.target}">{html.escape(span.content)}</a>')
            case Quote():
                cut = [
                    f'<a href="#{span.target}">{piece}</a>' if index % 2 else html.escape(piece)
                    for index, piece in enumerate(re.split(f"({_DIGITS.pattern})", span.content))
                ]
                parts.append("".join(cut))
            case Text() | Exact():
                parts.append(html.escape(span.content))
    return "".join(parts)
