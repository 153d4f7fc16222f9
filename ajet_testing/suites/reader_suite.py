"""Conformance tests for dataset readers. Subclass `ReaderSuite` in a test module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from agentjet.agents import task_of
from ajet_core.errors import AjetError
from ajet_core.interfaces import DatasetReader
from ajet_testing.conformance import ConformanceSuite

__all__ = ["ITEMS", "ReaderSuite"]

ITEMS: Sequence[Mapping[str, str]] = (
    {"id": "a", "question": "1 + 1?", "answer": "2"},
    {"id": "b", "question": 'Say "yes", then \\ and a comma, or;a semicolon', "answer": ""},
    {"id": "c", "question": "two\nlines\tand a tab ", "answer": "žluťoučký 🐎 \u2028\x85"},
    {"id": "d", "question": "{'id': 'e'}", "answer": "null"},
    # Not in order of its texts, with the answer of another one, and with lines of Windows.
    {"id": "e", "question": "1 + 1?", "answer": "2"},
    {"id": "f", "question": "0\r\n1\r2", "answer": "long " * 5_000},
)
"""Items of texts that formats like to change."""


class ReaderSuite(ConformanceSuite):
    """Conformance tests of a `DatasetReader`; a subclass creates one, and datasets for it."""

    def make_reader(self) -> DatasetReader:
        """Create a reader."""
        raise NotImplementedError

    def write(self, directory: Path, items: Sequence[Mapping[str, str]]) -> str:
        """Write a dataset into a new directory, and return its source.

        :param items: all have the fields ``id``, ``question`` and ``answer``.
        """
        raise NotImplementedError

    def damage(self, source: str) -> None:
        """Damage a dataset, such that it must be refused."""
        raise NotImplementedError

    def test_items_come_back_in_order_and_as_they_were(self, tmp_path: Path) -> None:
        source = self.write(tmp_path, ITEMS)
        assert list(self.make_reader().read(source)) == list(ITEMS)

    def test_thousands_of_items_come_back_in_order(self, tmp_path: Path) -> None:
        items = [{"id": str(i), "question": f"{i * 7 % 11}?", "answer": "a"} for i in range(3000)]
        source = self.write(tmp_path, items)
        assert list(self.make_reader().read(source)) == items

    def test_an_empty_dataset_has_no_items(self, tmp_path: Path) -> None:
        assert list(self.make_reader().read(self.write(tmp_path, ()))) == []

    def test_datasets_can_be_read_again_and_at_once(self, tmp_path: Path) -> None:
        source = self.write(tmp_path, ITEMS)
        reader = self.make_reader()
        pairs: Iterator[tuple[object, object]] = zip(
            reader.read(source), reader.read(source), strict=True
        )
        assert [first for first, second in pairs if first == second] == list(ITEMS)
        assert list(reader.read(source)) == list(self.make_reader().read(source))

    def test_items_are_tasks_with_their_ids(self, tmp_path: Path) -> None:
        source = self.write(tmp_path, ITEMS)
        assert [task_of(item).id for item in self.make_reader().read(source)] == list("abcdef")

    def test_a_missing_dataset_is_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(AjetError, match="no-such-dataset"):
            list(self.make_reader().read(str(tmp_path / "no-such-dataset")))

    def test_a_damaged_dataset_is_refused_by_name(self, tmp_path: Path) -> None:
        source = self.write(tmp_path, ITEMS)
        self.damage(source)
        with pytest.raises(AjetError) as refused:
            list(self.make_reader().read(source))
        assert source in refused.value.message
