"""Reads the files of offline runs: W&B's records in LevelDB's format of logs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

_BLOCK = 32768
_HEAD = 7
_SECONDS = 20.0


def payloads(content: bytes) -> Iterator[bytes]:
    """Yield whole payloads; a chunk is CRC, length, type (1 whole, 2 first, 3 middle, 4 last)."""
    if content[:4] != b":W&B":
        return
    position, parts = _HEAD, b""
    while position + _HEAD <= len(content):
        if _BLOCK - position % _BLOCK < _HEAD:
            position += _BLOCK - position % _BLOCK
            continue
        size = int.from_bytes(content[position + 4 : position + 6], "little")
        kind = content[position + 6]
        if kind not in (1, 2, 3, 4):
            return
        parts += content[position + _HEAD : position + _HEAD + size]
        position += _HEAD + size
        if kind in (1, 4):
            yield parts
            parts = b""


def runs(run_dir: Path) -> list[tuple[str, list[Record]]]:
    """Id and records of each offline run, in the order of their beginning."""
    files = (run_dir / "wandb").glob("offline-run-*/run-*.wandb")
    every = []
    for file in sorted(files, key=lambda file: file.stat().st_ctime_ns):
        records = _complete(file)
        every.append((file.stem.removeprefix("run-"), records))
    return every


def _complete(file: Path) -> list[Record]:
    """Records of a run, with the last one: W&B's own process writes on after the run's end."""
    until = time.monotonic() + _SECONDS
    while True:
        records = [Record.FromString(payload) for payload in payloads(file.read_bytes())]
        ended = any(record.WhichOneof("record_type") == "exit" for record in records)
        if ended or time.monotonic() > until:
            return records
        threading.Event().wait(0.02)


def history(records: list[Record]) -> list[dict[str, Any]]:
    """Rows of a run."""
    return [
        {
            "/".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in record.history.item
        }
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
