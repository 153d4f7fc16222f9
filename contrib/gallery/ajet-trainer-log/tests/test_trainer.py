"""The trainer passes the suite of agentjet, and its files have what a trainer would train."""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ajet_trainer_log.hooks import WEIGHT_CHANNELS
from ajet_trainer_log.settings import LogTrainerSettings
from ajet_trainer_log.trainer import LogTrainer
from pydantic import ValidationError

from ajet_core.errors import StepRefusedError, TrainerError
from ajet_core.interfaces import Trainer, WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_core.timeline import TrainSegment, TrainTree
from ajet_testing.suites.trainer_suite import TrainerSuite


def write_model(directory: Path) -> Path:
    """Write a model of one tensor of two numbers, in the format of safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text("{}")
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    data = struct.pack("<Q", len(header)) + header + struct.pack("<2f", 0.5, -0.5)
    (directory / "model.safetensors").write_bytes(data)
    return directory


def trainer_in(run_dir: Path, **settings: Any) -> LogTrainer:
    model = write_model(run_dir / "model")
    trainer = LogTrainer(LogTrainerSettings(**settings), WorkerContext(run_dir))
    trainer.start(ModelConfig(path=str(model)), AlgorithmConfig())
    return trainer


def read(run_dir: Path, step: int) -> list[dict[str, Any]]:
    lines = (run_dir / "batches" / f"step-{step:06d}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "batches").iterdir())


class TestLogTrainer(TrainerSuite):
    # The suite reads published directories if torch and safetensors are installed.
    weight_channels = WEIGHT_CHANNELS
    rehearses = True

    def make_trainer(self, run_dir: Path) -> Trainer:
        return trainer_in(run_dir)


class TestParquetTrainer(TestLogTrainer):
    def make_trainer(self, run_dir: Path) -> Trainer:
        return trainer_in(run_dir, format="parquet")


make_batch = TrainerSuite().make_batch


def test_a_row_has_what_is_trained_of_a_sequence(tmp_path: Path) -> None:
    batch = make_batch(3)
    trainer_in(tmp_path).step(batch)
    rows = read(tmp_path, 3)
    assert [row["episode_id"] for row in rows] == [e.episode_id for e in batch.episodes]
    second, calls = rows[1], batch.calls[2:4]
    assert second["token_ids"] == batch.trees[1].segments[0].token_ids
    assert [i for i, trained in enumerate(second["loss_mask"]) if trained] == [3, 4, 5, 8, 9, 10]
    assert second["logprobs"][3:6] == calls[0].logprobs
    assert second["logprobs"][8:11] == calls[1].logprobs
    assert second["advantages"] == [0, 0, 0, 0.7, 0.7, 0.7, 0, 0, 0.7, 0.7, 0.7, 0]
    assert second["policy_versions"] == [-1, -1, -1, 0, 0, 0, -1, -1, 0, 0, 0, -1]
    assert second["temperatures"] == [1.0] * 12
    alike = {"batch_id": "batch-3", "step": 3, "group": "group-0", "tag": "", "reward": 1.0}
    assert {name: second[name] for name in alike} == alike


def test_parquet_has_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    batch = make_batch(1)
    trainer_in(tmp_path).step(batch)
    trainer_in(tmp_path, format="parquet").step(batch)
    table = parquet.read_table(tmp_path / "batches" / "step-000001.parquet")
    assert table.to_pylist() == read(tmp_path, 1)


def test_a_step_that_is_trained_again_replaces_its_file(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    batch = make_batch(1)
    trainer.step(batch)
    trainer.step(replace(batch, batch_id="another"))
    assert {row["batch_id"] for row in read(tmp_path, 1)} == {"another"}
    assert names(tmp_path) == ["step-000001.jsonl"]


def test_a_run_that_goes_back_loses_its_later_files(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    for step in (1, 2, 3):
        trainer.step(make_batch(step))
        trainer.save(tmp_path / f"checkpoint-{step}")
    trainer.load(tmp_path / "checkpoint-1")
    assert names(tmp_path) == ["step-000001.jsonl"]


def test_a_refused_or_rehearsed_batch_writes_nothing(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    batch = make_batch(1)
    report = trainer.rehearse(batch)
    assert report.tokens_trained == 24
    wrong = replace(batch.calls[0], advantage=float("inf"))
    with pytest.raises(StepRefusedError, match=f"call {wrong.call_id} is not finite"):
        trainer.step(replace(batch, calls=[wrong, *batch.calls[1:]]))
    tree = TrainTree([TrainSegment(-1, [1]), TrainSegment(0, [2])])
    with pytest.raises(TrainerError, match="not a linear sequence"):
        trainer.step(replace(batch, trees=[tree]))
    assert not (tmp_path / "batches").exists()


def test_the_weights_are_those_of_the_model(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    trainer.step(make_batch(1))
    update = trainer.publish("safetensors_dir", 1)
    assert update.location == str(tmp_path / "model")
    trainer.export(tmp_path / "export")
    copied = (tmp_path / "export" / "model.safetensors").read_bytes()
    assert copied == (tmp_path / "model" / "model.safetensors").read_bytes()


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    (tmp_path / "batches").write_text("a file")
    with pytest.raises(TrainerError, match="step 1 cannot be written"):
        trainer.step(make_batch(1))


def test_parquet_without_pyarrow_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    trainer = trainer_in(tmp_path, format="parquet")
    with pytest.raises(TrainerError, match=r"ajet-trainer-log\[parquet\]"):
        trainer.step(make_batch(1))


@pytest.mark.parametrize("directory", ["", "..", "a/b", "/tmp"])
def test_files_stay_in_the_run_directory(directory: str) -> None:
    with pytest.raises(ValidationError):
        LogTrainerSettings(directory=directory)
