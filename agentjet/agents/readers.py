"""The dataset readers of agentjet for texts: JSON lines, JSON, and CSV."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, cast

import pydantic_core
from pydantic import Field

from ajet_core.errors import UnreadableFileError
from ajet_core.interfaces import ComponentSettings, DatasetReader, SettingsT_co

# The module's own limit, 128 KiB for a value, is less than a long prompt has.
_LONGEST_VALUE = 2**31 - 1
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """A row of a dataset, with its place.

    :param place: in the file, such as ``line 3``.
    :param item: the row's fields; None if the row cannot be read.
    :param problem: why it cannot be read.
    """

    place: str
    item: dict[str, Any] | None
    problem: str = ""


class RowReaderSettings(ComponentSettings):
    """:param limit: read at most this many rows."""

    limit: Annotated[int, Field(ge=1)] | None = None


class RowReader(DatasetReader[SettingsT_co]):
    """Reads rows with their places. A row that cannot be read does not end the file."""

    @abstractmethod
    def rows(self, source: str) -> Iterator[DatasetRow]:
        """Yield the rows, also those that cannot be read.

        :raises UnreadableFileError: the file cannot be read at all, or from some place on.
        """

    def read(self, source: str) -> Iterator[dict[str, Any]]:
        """Yield the fields of the rows.

        :raises UnreadableFileError: also if a row cannot be read.
        """
        for row in self.rows(source):
            if row.item is None:
                raise UnreadableFileError(f"{source}, {row.place}: {row.problem}")
            yield row.item


class JsonlReaderSettings(RowReaderSettings):
    """:param limit: read at most this many objects."""


class JsonlReader(RowReader[JsonlReaderSettings]):
    """Reads files with a JSON object on each line, or with one JSON array of objects.

    Empty lines are skipped. Files may be compressed with gzip.
    """

    def rows(self, source: str) -> Iterator[DatasetRow]:
        """Yield the objects. The rows of an array are counted, since its lines say nothing."""
        return itertools.islice(_objects(source), self.settings.limit)


class CsvReaderSettings(RowReaderSettings):
    """:param delimiter: the character between two values; a tab for TSV.

    :param limit: read at most this many rows.
    """

    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","


class CsvReader(RowReader[CsvReaderSettings]):
    """Reads files whose first row has the names of the columns; all values are strings.

    Files may be compressed with gzip.
    """

    def rows(self, source: str) -> Iterator[DatasetRow]:
        """Yield the rows below the names as mappings."""
        return itertools.islice(_rows(source, self.settings.delimiter), self.settings.limit)


def _objects(source: str) -> Iterator[DatasetRow]:
    # Bytes, because one line that is not UTF-8 must not end the file.
    with _opened(source, binary=True) as opened:
        file = cast("IO[bytes]", opened)
        for number, line in enumerate(file, start=1):
            text = line.removeprefix(_BOM) if number == 1 else line
            if number == 1 and text.lstrip().startswith(b"[") and _is_array(source, text):
                yield from _elements(source, text + file.read())
                return
            if text.strip():
                yield _row(f"line {number}", text)


def _is_array(source: str, first: bytes) -> bool:
    # In a file of lines, a list is one wrong line. An array of objects continues with "{".
    rest = first.lstrip()[1:].lstrip()
    return not rest or rest.startswith(b"{") or ".json" in Path(source).suffixes


def _elements(source: str, text: bytes) -> Iterator[DatasetRow]:
    try:
        elements = pydantic_core.from_json(text)
    except ValueError as error:
        raise UnreadableFileError(f"{source}: not valid JSON ({error})") from error
    for number, item in enumerate(elements, start=1):
        if isinstance(item, dict):
            yield DatasetRow(f"row {number}", item)
        else:
            yield DatasetRow(f"row {number}", None, "not a JSON object")


def _row(place: str, text: bytes) -> DatasetRow:
    try:
        item = pydantic_core.from_json(text.decode())
    except UnicodeDecodeError as error:
        return DatasetRow(place, None, f"not UTF-8 ({error})")
    except ValueError as error:
        return DatasetRow(place, None, f"not valid JSON ({error})")
    if not isinstance(item, dict):
        return DatasetRow(place, None, "not a JSON object")
    return DatasetRow(place, item)


def _rows(source: str, delimiter: str) -> Iterator[DatasetRow]:
    csv.field_size_limit(_LONGEST_VALUE)
    with _opened(source, binary=False) as opened:
        rows = csv.reader(cast("Iterable[str]", opened), delimiter=delimiter, strict=True)
        try:
            names = next(rows, [])
        except csv.Error as error:
            raise UnreadableFileError(f"{source}, line 1: {error}") from error
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise UnreadableFileError(f"{source}, line 1: two columns have the name {min(twice)!r}")
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield DatasetRow(f"line {rows.line_num}", None, str(error))
                continue
            place = f"line {rows.line_num}"
            if row and len(row) != len(names):
                problem = f"{len(row)} values for {len(names)} columns"
                yield DatasetRow(place, None, problem)
            elif row:
                yield DatasetRow(place, dict(zip(names, row, strict=True)))


@contextmanager
def _opened(source: str, *, binary: bool) -> Iterator[IO[Any]]:
    try:
        is_packed = Path(source).suffix == ".gz"
        with gzip.GzipFile(source) if is_packed else Path(source).open("rb") as file:
            content = cast("IO[bytes]", file)
            # Files of spreadsheets often begin with a byte order mark.
            yield content if binary else io.TextIOWrapper(content, encoding="utf-8-sig", newline="")
    except UnreadableFileError:
        raise
    except UnicodeDecodeError as error:
        raise UnreadableFileError(f"{source} is not UTF-8: {error}") from error
    # ValueError: the path is not valid, for example because it contains a null character.
    # EOFError, zlib.error: a compressed file is cut off or damaged.
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise UnreadableFileError(f"cannot read {source}: {error}") from error
