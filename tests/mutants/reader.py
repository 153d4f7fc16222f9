"""Mutations of the dataset readers: CSV, JSON lines, and the records of a third party."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pydantic_core

from agentjet.agents import readers
from ajet_core.errors import UnreadableFileError
from tests.mutants.planting import Mutants, around, put

FILE = "tests/agents/test_registered.py"
jsonl = Mutants("reader", f"{FILE}::TestJsonl")
csv = Mutants("reader", f"{FILE}::TestCsv")
ALL = (jsonl, csv)


def changed(reader: Any, change: Any) -> None:
    """Change the items of a reader."""
    around(reader, "read", lambda original, self, source: change(original(self, source)))


def values(reader: Any, change: Any) -> None:
    """Change each value of each item of a reader."""
    changed(reader, lambda items: ({name: change(v) for name, v in item.items()} for item in items))


def opened(**options: Any) -> None:
    """Open files in another way."""

    @contextmanager
    def by(source: str, newline: str) -> Iterator[Any]:
        with Path(source).open(**{"encoding": "utf-8-sig", "newline": newline} | options) as file:
            yield file

    def named(source: str, newline: str) -> Any:
        return _errors(by(source, newline), source)

    put(readers, "_opened", named)


@contextmanager
def _errors(file: Any, source: str) -> Iterator[Any]:
    try:
        with file as entered:
            yield entered
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFileError(f"cannot read {source}: {error}") from error


@csv
def the_first_row_is_taken_for_a_header() -> None:
    changed(readers.CsvReader, lambda items: itertools.islice(items, 1, None))


@jsonl
def the_last_item_is_lost() -> None:
    changed(readers.JsonlReader, lambda items: list(items)[:-1])


@csv
def values_are_stripped() -> None:
    values(readers.CsvReader, str.strip)


@jsonl
def lines_end_at_every_separator() -> None:
    def read(_: Any, source: str) -> Any:
        text = Path(source).read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                try:
                    yield pydantic_core.from_json(line)
                except ValueError as error:
                    raise UnreadableFileError(f"{source}, line {number}: {error}") from error

    around(readers, "_objects", read)


@csv
def files_are_latin_1() -> None:
    opened(encoding="latin-1")


@csv
def unknown_characters_are_dropped() -> None:
    opened(encoding="ascii", errors="ignore")


@csv
def line_ends_become_newlines() -> None:
    opened(newline=None)


@jsonl
def items_are_sorted() -> None:
    changed(readers.JsonlReader, lambda items: sorted(items, key=lambda item: item["question"]))


@csv
def numbers_are_parsed() -> None:
    values(readers.CsvReader, lambda value: int(value) if value.isdigit() else value)


@csv
def empty_values_and_null_are_none() -> None:
    values(readers.CsvReader, lambda value: None if value in ("", "null") else value)


@jsonl
def texts_of_literals_are_evaluated() -> None:
    def evaluated(value: str) -> Any:
        try:
            return ast.literal_eval(value) if value.startswith("{") else value
        except (ValueError, SyntaxError):
            return value

    values(readers.JsonlReader, evaluated)


@jsonl
def one_iterator_serves_all() -> None:
    made: dict[str, Any] = {}

    def read(original: Any, self: Any, source: str) -> Any:
        return made.setdefault(source, original(self, source))

    around(readers.JsonlReader, "read", read)


@jsonl
def a_damaged_line_is_skipped() -> None:
    def read(original: Any, self: Any, source: str) -> Any:
        items = original(self, source)
        while True:
            try:
                yield next(items)
            except (StopIteration, UnreadableFileError):
                if not Path(source).exists():
                    raise
                return

    around(readers.JsonlReader, "read", read)


@csv
def a_missing_dataset_is_empty() -> None:
    def read(original: Any, self: Any, source: str) -> Any:
        return original(self, source) if Path(source).exists() else []

    around(readers.CsvReader, "read", read)


@csv
def the_error_of_the_system_is_raised() -> None:
    def read(original: Any, self: Any, source: str) -> Any:
        if not Path(source).exists():
            raise FileNotFoundError(source)
        return original(self, source)

    around(readers.CsvReader, "read", read)


@csv
def damage_is_refused_without_the_name_of_the_file() -> None:
    def read(original: Any, self: Any, source: str) -> Any:
        try:
            yield from original(self, source)
        except UnreadableFileError as error:
            if "values for" in error.message:
                raise UnreadableFileError("the file is damaged") from error
            raise

    around(readers.CsvReader, "read", read)


@jsonl
def the_same_item_comes_once() -> None:
    """Items that differ in their ids alone are the same."""

    def change(items: Any) -> Any:
        seen = set()
        for item in items:
            key = (item["question"], item["answer"])
            if key not in seen:
                seen.add(key)
                yield item

    changed(readers.JsonlReader, change)


@jsonl
def a_thousand_items_are_enough() -> None:
    changed(readers.JsonlReader, lambda items: itertools.islice(items, 1000))


@jsonl
def items_come_in_the_order_of_the_shards() -> None:
    """Of many items, each second one comes first, as from two files that are read at once."""

    def change(items: Any) -> Any:
        items = list(items)
        return items if len(items) < 100 else [*items[::2], *items[1::2]]

    changed(readers.JsonlReader, change)


@csv
def long_values_are_cut() -> None:
    values(readers.CsvReader, lambda value: value[:1024])


@csv
def an_empty_dataset_is_refused() -> None:
    def read(original: Any, self: Any, source: str) -> Any:
        items = list(original(self, source))
        if not items:
            raise UnreadableFileError(f"{source} is empty")
        return items

    around(readers.CsvReader, "read", read)


@jsonl
def items_lose_their_ids() -> None:
    changed(
        readers.JsonlReader,
        lambda items: ({n: v for n, v in item.items() if n != "id"} for item in items),
    )
