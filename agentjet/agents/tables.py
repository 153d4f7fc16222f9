"""The dataset reader for Parquet and Arrow files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentjet.agents.readers import DatasetRow, RowReader, RowReaderSettings
from ajet_core.errors import ConfigError, UnreadableFileError

_BATCH = 1_000
_POINTER = b"version https://git-lfs"


class ParquetReaderSettings(RowReaderSettings):
    """:param columns: read only these; all if it is empty.

    :param limit: read at most this many rows.
    """

    columns: tuple[str, ...] = ()


class ParquetReader(RowReader[ParquetReaderSettings]):
    """Reads Parquet files, and Arrow files as ``save_to_disk`` of Hugging Face datasets writes.

    The content of a file says which it is. It is read in batches of rows. A column that has no
    value in a row is None there.
    """

    def rows(self, source: str) -> Iterator[DatasetRow]:
        """Yield the rows.

        :raises ConfigError: pyarrow is not installed.
        """
        items = itertools.islice(self._items(source), self.settings.limit)
        for number, item in enumerate(items, start=1):
            yield DatasetRow(f"row {number}", item)

    def _items(self, source: str) -> Iterator[dict[str, Any]]:
        try:
            import pyarrow as pa
        except ImportError as error:
            raise ConfigError(
                f"reading {source} requires pyarrow: pip install 'agentjet[export]>=0.1'",
                param="source",
            ) from error
        read = 0
        try:
            for batch in self._batches(source):
                yield from batch.to_pylist()
                read += batch.num_rows
        # OSError: the path, or a damaged page. ValueError: also a null character in the path, or
        # a text that is not UTF-8.
        except (pa.ArrowException, OSError, ValueError) as error:
            said = " ".join(str(error).split())
            place = f", after row {read}" if read else ""
            raise UnreadableFileError(f"cannot read {source}{place}: {said}") from error

    def _batches(self, source: str) -> Iterator[Any]:
        import pyarrow as pa
        from pyarrow import parquet

        with Path(source).open("rb") as file:
            start = file.read(len(_POINTER))
        if start == _POINTER:
            raise UnreadableFileError(
                f"{source} is only a pointer to the file, which Git LFS has: run git lfs pull"
            )
        wanted = list(self.settings.columns)
        if start.startswith(b"PAR1"):
            with parquet.ParquetFile(source) as table:
                self._require(source, table.schema_arrow.names)
                yield from table.iter_batches(batch_size=_BATCH, columns=wanted or None)
            return
        with pa.memory_map(source) as file:
            # Both have a reader with batches. Files of the cache and of `save_to_disk` are streams.
            if start.startswith(b"ARROW1"):
                table = pa.ipc.open_file(file)
                batches = (table.get_batch(index) for index in range(table.num_record_batches))
            elif start.startswith(b"\xff\xff\xff\xff"):
                table = batches = pa.ipc.open_stream(file)
            else:
                raise UnreadableFileError(f"{source} is neither a Parquet nor an Arrow file")
            self._require(source, table.schema.names)
            for batch in batches:
                for start_row in range(0, batch.num_rows, _BATCH):
                    part = batch.slice(start_row, _BATCH)
                    yield part.select(wanted) if wanted else part

    def _require(self, source: str, names: list[str]) -> None:
        missing = [name for name in self.settings.columns if name not in names]
        if missing:
            raise UnreadableFileError(
                f"{source} has no column {missing[0]!r}; it has {', '.join(names)}"
            )
