"""Documents as parts that fit into a prompt: text and Markdown, in files and directories."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ajet_core.errors import ConfigError
from ajet_core.files import read_bytes

SUFFIXES = frozenset({".md", ".markdown", ".rst", ".txt"})
"""Of the files that are read in a directory."""

_BINARY = frozenset({".pdf", ".docx", ".doc", ".odt", ".epub", ".pptx"})
_PARAGRAPH = re.compile(r"\n[ \t\r]*\n\s*")
_HEADING = re.compile(r"#{1,6}\s")
# Where a paragraph that is too long is divided, best first.
_BREAKS = (re.compile(r"[.!?]\s+"), re.compile(r"\n"), re.compile(r"\s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPart:
    """A part of a document: whole paragraphs, unless one is too long.

    :param path: of the document.
    :param sha256: hex digest of the document's bytes.
    :param start: offset in the document's text, in characters.
    :param end: offset after the last character.
    """

    path: str
    sha256: str
    start: int
    end: int
    text: str


def read_documents(paths: Sequence[Path], most: int) -> list[DocumentPart]:
    """Return the parts of documents, in the order of the paths.

    Of a directory, all files in it whose names end in one of `SUFFIXES` are read, by name; hidden
    ones are not.

    :param most: characters of a part.
    :raises ConfigError: a file is not text in UTF-8, or there is no text at all.
    """
    parts = [part for path in paths for file in _files(path) for part in _parts(file, most)]
    if not parts:
        names = ", ".join(map(str, paths))
        raise ConfigError(f"{names}: there is no text in {', '.join(sorted(SUFFIXES))} files")
    return parts


def spans(text: str, most: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of the parts of a text, none longer than `most` characters.

    Together they have all of the text but white space between paragraphs. A heading of Markdown is
    not the end of a part if more follows.
    """
    waiting: list[tuple[int, int]] = []
    for start, end in _pieces(text, most):
        if waiting and end - waiting[0][0] > most:
            heading = len(waiting) > 1 and _HEADING.match(text, waiting[-1][0])
            kept = waiting[-1:] if heading and end - waiting[-1][0] <= most else []
            done = waiting[: len(waiting) - len(kept)]
            yield done[0][0], done[-1][1]
            waiting = kept
        waiting.append((start, end))
    if waiting:
        yield waiting[0][0], waiting[-1][1]


def _pieces(text: str, most: int) -> Iterator[tuple[int, int]]:
    """Yield paragraphs, and pieces of those that are too long."""
    ends = [(match.start(), match.end()) for match in _PARAGRAPH.finditer(text)]
    start = 0
    for end, following in [*ends, (len(text), len(text))]:
        first, last = _stripped(text, start, end)
        while last - first > most:
            cut = _cut(text, first, first + most)
            yield _stripped(text, first, cut)
            first, last = _stripped(text, cut, last)
        if first < last:
            yield first, last
        start = following


def _cut(text: str, start: int, limit: int) -> int:
    """Return where to divide a text, so that the first piece is not short of half the limit."""
    middle = start + (limit - start) // 2
    for pattern in _BREAKS:
        ends = [match.end() for match in pattern.finditer(text, middle, limit)]
        if ends:
            return ends[-1]
    return limit


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    left = start + len(piece) - len(piece.lstrip())
    return left, max(left, start + len(piece.rstrip()))


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            if not hidden and file.suffix.lower() in SUFFIXES and file.is_file():
                yield file
    elif path.suffix.lower() in _BINARY:
        raise ConfigError(
            f"{path}: {path.suffix} files are not read; convert it to text or Markdown first"
        )
    else:
        yield path


def _parts(path: Path, most: int) -> Iterator[DocumentPart]:
    try:
        content = read_bytes(path)
        text = content.decode("utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"there is no document {path}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8: {error}") from error
    digest = hashlib.sha256(content).hexdigest()
    for start, end in spans(text, most):
        yield DocumentPart(
            path=str(path), sha256=digest, start=start, end=end, text=text[start:end]
        )
