"""Files that keep what was paid for: each line is on disk before the next thing is done."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet_core.errors import UnreadableFileError


class RowFile:
    """A file with a JSON object on each line, to which rows are added.

    The last line is removed if it was cut off by a crash. Only one process may have the file open.

    :ivar rows: all of them, in order.
    :raises UnreadableFileError: another line is not a JSON object.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        content = path.read_bytes() if path.exists() else b""
        whole, _, cut_off = content.rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("it is not an object")
            except ValueError as error:
                raise UnreadableFileError(f"{path}, line {number}: {error}") from error
            self.rows.append(row)
        if cut_off:
            with path.open("r+b") as file:
                file.truncate(len(content) - len(cut_off))
                os.fsync(file.fileno())

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row; it is on disk when this returns."""
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            # Half of a surrogate pair, which a model may write as an escape of JSON.
            line = json.dumps(row, allow_nan=False).encode()
        with self.path.open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(dict(row))


class AnswerRecording:
    """Answers of endpoints by their requests, in a file; a request in it is not sent again.

    A row has the fields ``key`` (hex SHA-256 of the request as JSON), ``text``, ``tokens`` and
    ``created`` (in UTC).

    :raises UnreadableFileError: a line is not an answer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = RowFile(path)
        self._by_key: dict[str, dict[str, Any]] = {}
        for number, row in enumerate(self._file.rows, 1):
            if not {"key", "text", "tokens", "created"} <= row.keys():
                raise UnreadableFileError(f"{path}, line {number}: it is not a recorded answer")
            self._by_key[row["key"]] = row

    def get(self, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a request, None if there is none."""
        return self._by_key.get(request_key(body))

    def add(self, body: Mapping[str, Any], text: str, tokens: int, created: str) -> dict[str, Any]:
        """Keep an answer, and return its row."""
        row: dict[str, Any] = {
            "key": request_key(body),
            "text": text,
            "tokens": tokens,
            "created": created,
        }
        self._file.add(row)
        self._by_key[row["key"]] = row
        return row


def request_key(body: Mapping[str, Any]) -> str:
    """Return what identifies a request: hex SHA-256 of its JSON with sorted keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
