"""Files that are written whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ajet_core.errors import UnreadableFileError
from ajet_core.files import read_json, write_whole


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_has_the_content_and_the_mode_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    before = os.umask(0o077)
    try:
        write_whole(path, b"one", mode=mode)
        write_whole(path, b"two", mode=mode)
    finally:
        os.umask(before)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == mode


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_whole(path, b"one")

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"two")
    assert path.read_bytes() == b"one"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"untouched")
    path = tmp_path / "file"
    path.symlink_to(elsewhere)
    write_whole(path, b"new")
    assert elsewhere.read_bytes() == b"untouched"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b'{"a":',
        b'{"a": "\xff"}',
        b'{"a":' * 100_000,
        b"\x00",
        b'{"a": "\\ud800"}',
    ],
)
def test_what_is_no_json_object_is_an_error_that_names_the_file(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableFileError, match=r"state\.json"):
        read_json(path)


def test_a_file_that_is_too_large_or_none_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b'{"a": 1}')
    assert read_json(path, limit=8) == {"a": 1}
    with pytest.raises(UnreadableFileError, match="larger than 7 bytes"):
        read_json(path, limit=7)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_json(path)
    os.mkfifo(path)
    # A pipe has no end to be read to.
    with pytest.raises(UnreadableFileError, match="not a regular file"):
        read_json(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UnreadableFileError):
        read_json(path)
