"""The dataset readers of agentjet: JSON lines, and CSV."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import pydantic_core
from pydantic import Field

from ajet_core.errors import UnreadableFileError
from ajet_core.interfaces import ComponentSettings, DatasetReader


class JsonlReaderSettings(ComponentSettings):
    """:param limit: read at most this many items."""

    limit: Annotated[int, Field(ge=1)] | None = None


class JsonlReader(DatasetReader[JsonlReaderSettings]):
    """Reads files with a JSON object on each line. Empty lines are skipped."""

    def read(self, source: str) -> Iterator[dict[str, Any]]:
        """Yield the objects."""
        return itertools.islice(_objects(source), self.settings.limit)


class CsvReaderSettings(ComponentSettings):
    """:param delimiter: the character between two values; a tab for TSV.

    :param limit: read at most this many rows.
    """

    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    limit: Annotated[int, Field(ge=1)] | None = None


class CsvReader(DatasetReader[CsvReaderSettings]):
    """Reads files whose first row has the names of the columns; all values are strings."""

    def read(self, source: str) -> Iterator[dict[str, str]]:
        """Yield the rows below the names as mappings."""
        return itertools.islice(_rows(source, self.settings.delimiter), self.settings.limit)


def _objects(source: str) -> Iterator[dict[str, Any]]:
    with _opened(source, newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                item = pydantic_core.from_json(line)
            except ValueError as error:
                raise UnreadableFileError(
                    f"{source}, line {number}: not valid JSON ({error})"
                ) from error
            if not isinstance(item, dict):
                raise UnreadableFileError(f"{source}, line {number}: not a JSON object")
            yield item


def _rows(source: str, delimiter: str) -> Iterator[dict[str, str]]:
    with _opened(source, newline="") as file:
        rows = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            names = next(rows, [])
            for row in rows:
                if not row:
                    continue
                if len(row) != len(names):
                    raise UnreadableFileError(
                        f"{source}, line {rows.line_num}: {len(row)} values for {len(names)} "
                        "columns"
                    )
                yield dict(zip(names, row, strict=True))
        except csv.Error as error:
            raise UnreadableFileError(f"{source}, line {rows.line_num}: {error}") from error


@contextmanager
def _opened(source: str, newline: str) -> Iterator[TextIO]:
    try:
        # Files of spreadsheets often begin with a byte order mark.
        with Path(source).open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnreadableFileError:
        raise
    except UnicodeDecodeError as error:
        raise UnreadableFileError(f"{source} is not UTF-8: {error}") from error
    # ValueError: the path is not valid, for example because it contains a null character.
    except (OSError, ValueError) as error:
        raise UnreadableFileError(f"cannot read {source}: {error}") from error
