"""Files of rows. A file is complete or does not exist."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from ajet_core.errors import TrainerError
from ajet_trainer_log.rows import Row

Writer = Callable[[Path, Sequence[Row]], None]

_NAME = re.compile(r"step-(\d+)\.\w+")


def write_jsonl(file: Path, rows: Sequence[Row]) -> None:
    """Write a line of JSON for each row."""
    lines = [json.dumps(asdict(row), separators=(",", ":")) + "\n" for row in rows]
    file.write_text("".join(lines), encoding="utf-8")


def write_parquet(file: Path, rows: Sequence[Row]) -> None:
    """Write a table with a column for each field.

    :raises TrainerError: pyarrow is missing.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise TrainerError(
            "trainer.settings.format is 'parquet', which needs pyarrow: "
            'pip install "ajet-trainer-log[parquet]"'
        ) from error
    texts = ("batch_id", "episode_id", "group", "tag")
    types = {name: pa.string() for name in texts} | {
        "step": pa.int64(),
        "reward": pa.float64(),
        "token_ids": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.bool_()),
        "advantages": pa.list_(pa.float64()),
        "logprobs": pa.list_(pa.float64()),
        "policy_versions": pa.list_(pa.int32()),
        "temperatures": pa.list_(pa.float64()),
    }
    names = list(Row.__dataclass_fields__)
    schema = pa.schema([(name, types[name]) for name in names])
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows], schema), file)


WRITERS: Mapping[str, Writer] = {"jsonl": write_jsonl, "parquet": write_parquet}


class StepFiles:
    """The files of a run, one for each step.

    :param ending: of their names, which is a name of `WRITERS`.
    """

    def __init__(self, directory: Path, ending: str) -> None:
        self._directory = directory
        self._ending = ending

    def write(self, step: int, rows: Sequence[Row]) -> None:
        """Write a step, in place of an earlier file of it.

        :raises TrainerError: the disk is full or cannot be written.
        """
        file = self._directory / f"step-{step:06d}.{self._ending}"
        partial = file.with_name(f".{file.name}.partial")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            try:
                WRITERS[self._ending](partial, rows)
                partial.replace(file)
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            raise TrainerError(f"step {step} cannot be written to {file}: {error}") from error

    def drop_after(self, step: int) -> None:
        """Remove the files of later steps, which the run no longer has."""
        for file in self._directory.glob("step-*"):
            if (match := _NAME.fullmatch(file.name)) and int(match[1]) > step:
                file.unlink()
