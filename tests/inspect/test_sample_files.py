"""Samples in files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ajet_cli.inspect import sample_files
from ajet_cli.inspect.files import new_file
from ajet_cli.inspect.sample_files import file_format, open_writer
from ajet_cli.inspect.samples import RowType
from ajet_core.errors import ConfigError, RequestError

ROW_TYPE: RowType = {"name": "text", "ids": "ids", "logprobs": "floats", "mask": "mask"}
ROWS = [
    {"name": f"row {i}", "ids": [i, 2**32 - 1], "logprobs": [None, -0.1 * i], "mask": [0, 1]}
    for i in range(5)
]


def test_json_lines_are_the_rows(tmp_path: Path) -> None:
    with open_writer(tmp_path / "rows", "jsonl", ROW_TYPE) as writer:
        for row in ROWS:
            writer.write(row)
    lines = (tmp_path / "rows").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == ROWS


def test_parquet_holds_the_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with open_writer(tmp_path / "rows", "parquet", ROW_TYPE) as writer:
        for row in ROWS:
            writer.write(row)
    assert parquet.read_table(tmp_path / "rows").to_pylist() == ROWS


def test_parquet_is_written_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(sample_files, "_ROW_GROUP_TOKENS", 4)
    with open_writer(tmp_path / "rows", "parquet", ROW_TYPE) as writer:
        for row in ROWS:
            writer.write(row)
    # Two tokens a row, so a group of two rows; the last one is alone.
    assert parquet.ParquetFile(tmp_path / "rows").num_row_groups == 3


def test_parquet_without_its_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'agentjet\[export\]>=0.1'"):
        open_writer(tmp_path / "rows", "parquet", ROW_TYPE)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [("a.jsonl", None, "jsonl"), ("a.parquet", None, "parquet"), ("a.txt", "jsonl", "jsonl")],
)
def test_the_suffix_says_the_format(name: str, given: str | None, expected: str) -> None:
    assert file_format(Path(name), given) == expected


def test_an_unknown_suffix_is_refused() -> None:
    with pytest.raises(RequestError, match="--format"):
        file_format(Path("a.txt"), None)


def test_a_file_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("mine")
    with pytest.raises(RequestError, match="--force"), new_file(path, replace=False):
        pass
    assert path.read_text() == "mine"
    with new_file(path, replace=True) as file:
        file.write_text("new")
    assert path.read_text() == "new"


def test_a_file_that_is_made_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out"

    def write() -> None:
        with new_file(path, replace=False) as file:
            file.write_text("new")
            path.write_text("theirs")

    with pytest.raises(RequestError, match="in the meantime"):
        write()
    assert [each.read_text() for each in tmp_path.iterdir()] == ["theirs"]


def test_a_file_is_not_there_before_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with new_file(path, replace=False) as file:
        file.write_text("half")
        assert not path.exists()
    assert path.read_text() == "half"


def test_nothing_is_left_of_a_file_that_failed(tmp_path: Path) -> None:
    def write() -> None:
        with new_file(tmp_path / "out", replace=False) as file:
            file.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "out"
    with pytest.raises(RequestError, match="does not exist"), new_file(path, replace=True):
        pass
