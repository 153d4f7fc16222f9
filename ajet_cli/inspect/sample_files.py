"""Files of samples: JSON lines and Parquet, written row by row."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from ajet_cli.inspect.samples import Kind, Row, RowType
from ajet_core.errors import ConfigError, RequestError

FileFormat = Literal["jsonl", "parquet"]
FILE_FORMATS: tuple[FileFormat, ...] = ("jsonl", "parquet")

_ROW_GROUP_TOKENS = 2**20


class RowWriter(ABC):
    """A context manager that writes rows of one type."""

    @abstractmethod
    def write(self, row: Row) -> None:
        """Write a row."""

    @abstractmethod
    def close(self) -> None:
        """Write what remains."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class JsonlWriter(RowWriter):
    """One JSON object on each line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")

    def write(self, row: Row) -> None:
        """Write a row."""
        self._file.write(json.dumps(row, separators=(",", ":"), allow_nan=False))
        self._file.write("\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ParquetWriter(RowWriter):
    """Writes row groups of about a million tokens, so that memory use stays bounded.

    :raises ConfigError: pyarrow is not installed.
    """

    def __init__(self, path: Path, row_type: RowType) -> None:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise ConfigError(
                "writing Parquet requires pyarrow: "
                "pip install 'agentjet[export]>=0.1', or write JSONL"
            ) from error
        types: dict[Kind, Any] = {
            "text": pa.string(),
            "int": pa.int64(),
            "float": pa.float64(),
            "texts": pa.list_(pa.string()),
            "floats": pa.list_(pa.float64()),
            "ids": pa.list_(pa.uint32()),
            "ints": pa.list_(pa.int32()),
            "mask": pa.list_(pa.int8()),
        }
        self._arrow = pa
        self._schema = pa.schema([(name, types[kind]) for name, kind in row_type.items()])
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[Row] = []
        self._tokens = 0

    def write(self, row: Row) -> None:
        """Write a row."""
        self._rows.append(row)
        self._tokens += max((len(v) for v in row.values() if isinstance(v, list)), default=0)
        if self._tokens >= _ROW_GROUP_TOKENS:
            self._flush()

    def close(self) -> None:
        """Write the last row group and the footer."""
        try:
            self._flush()
        finally:
            self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._tokens = [], 0


def file_format(path: Path, given: str | None) -> FileFormat:
    """Return the format of a file: the given one, or that of its suffix.

    :raises RequestError: the suffix is of no known format.
    """
    name = given or path.suffix.removeprefix(".")
    for known in FILE_FORMATS:
        if name == known:
            return known
    raise RequestError(
        f"{path} does not end in .jsonl or .parquet: rename it, or pass --format jsonl or parquet"
    )


def open_writer(path: Path, format: FileFormat, row_type: RowType) -> RowWriter:  # noqa: A002
    """Create a writer for rows of `row_type`."""
    return ParquetWriter(path, row_type) if format == "parquet" else JsonlWriter(path)
