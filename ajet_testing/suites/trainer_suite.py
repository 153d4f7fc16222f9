"""Conformance tests for trainers. Subclass `TrainerSuite` in a test module."""

from __future__ import annotations

import gc
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import EngineError, StepRefusedError, TrainerError
from ajet_core.interfaces import Trainer
from ajet_core.timeline import (
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
)
from ajet_testing.conformance import ConformanceSuite
from ajet_testing.weights.broadcast import receive_once

__all__ = ["EPISODES", "NOT_FINITE", "TrainerSuite"]

EPISODES = 4
NOT_FINITE = (math.nan, math.inf, -math.inf)


class TrainerSuite(ConformanceSuite):
    """Conformance tests of a `Trainer`; a subclass creates and starts one.

    .. code-block:: python

        class TestMyTrainer(TrainerSuite):
            vocab_size = 96

            def make_trainer(self, run_dir: Path) -> Trainer:
                trainer = MyTrainer(MySettings(), WorkerContext(run_dir))
                trainer.start(ModelConfig(path=...), AlgorithmConfig(minibatches=2))
                return trainer

    All trainers start from the same weights. With several minibatches, a batch is refused after
    weights have changed, which is the harder case.

    :cvar vocab_size: token ids of batches are below it.
    :cvar weight_channels: the trainer's registered weight channels; reading what it publishes needs
        torch and safetensors.
    :cvar rehearses: its `TrainerCapabilities.rehearses`.
    """

    vocab_size = 32
    weight_channels: tuple[str, ...] = ()
    rehearses = False

    def make_trainer(self, run_dir: Path) -> Trainer:
        """Create a started trainer."""
        raise NotImplementedError

    def make_truncating_trainer(self, run_dir: Path) -> Trainer:  # noqa: ARG002
        """Create a trainer with `AlgorithmConfig.importance` ``truncated`` and a cap of 2.

        Implement this if the trainer supports the field; otherwise its tests are skipped.
        """
        pytest.skip("this suite makes no trainer with truncated importance weights")

    def state(self, trainer: Trainer, directory: Path) -> object:
        """Return the complete state of `trainer` for comparison: the bytes of saved files."""
        trainer.save(directory)
        return {path.relative_to(directory): path.read_bytes() for path in _files(directory)}

    def make_batch(self, step: int) -> TrainBatch:
        """Create linear sequences of two calls for each of two groups of two episodes."""
        rng = random.Random(step)  # noqa: S311
        calls: list[TrainCall] = []
        trees = []
        for episode in range(EPISODES):
            ids = [rng.randrange(self.vocab_size) for _ in range(12)]
            spans = []
            for offset in (3, 8):
                spans.append(TrainSpan(offset, len(calls), 0, 3))
                behaviour = [-rng.uniform(0.5, 3.0) for _ in range(3)]
                advantage = 0.7 if episode % 2 else -0.7
                calls.append(
                    TrainCall(f"{step}-{len(calls)}", episode, advantage, 1.0, behaviour, [0] * 3)
                )
            trees.append(TrainTree([TrainSegment(-1, ids, spans)]))
        episodes = [
            TrainEpisode(f"{step}-{i}", f"group-{i // 2}", float(i % 2)) for i in range(EPISODES)
        ]
        return TrainBatch(f"batch-{step}", step, episodes, calls, trees, 12 * EPISODES)

    def poisoned_batches(self, step: int) -> list[TrainBatch]:
        """Create copies of `make_batch` whose last call has a non-finite logprob or advantage."""
        good = self.make_batch(step)
        last = good.calls[-1]
        bad_calls = [replace(last, advantage=value) for value in NOT_FINITE]
        bad_calls += [replace(last, logprobs=[*last.logprobs[:-1], v]) for v in NOT_FINITE]
        return [replace(good, calls=[*good.calls[:-1], call]) for call in bad_calls]

    def test_a_step_is_reported(self, tmp_path: Path) -> None:
        """The report has the step, and its numbers are finite."""
        batch = self.make_batch(1)
        report = self.make_trainer(tmp_path).step(batch)
        assert report.step == 1
        assert report.tokens_trained == sum(len(call.logprobs) for call in batch.calls)
        assert report.metrics
        assert all(math.isfinite(value) for value in report.metrics.values())
        if report.logprobs:
            lengths = [len(logprobs) for logprobs in report.logprobs]
            assert lengths == [len(call.logprobs) for call in batch.calls]

    def test_a_step_changes_what_is_saved(self, tmp_path: Path) -> None:
        """Otherwise the other tests could not fail."""
        trainer = self.make_trainer(tmp_path / "run")
        before = self.state(trainer, tmp_path / "before")
        trainer.step(self.make_batch(1))
        assert self.state(trainer, tmp_path / "after") != before

    def test_a_refused_step_leaves_no_trace(self, tmp_path: Path) -> None:
        """A batch with a non-finite number is refused, and the state is unchanged."""
        trainer = self.make_trainer(tmp_path / "run")
        trainer.step(self.make_batch(1))
        before = self.state(trainer, tmp_path / "before")
        for number, batch in enumerate(self.poisoned_batches(2)):
            with pytest.raises(StepRefusedError) as refused:
                trainer.step(batch)
            assert refused.value.message
            assert self.state(trainer, tmp_path / f"after-{number}") == before

    def test_training_goes_on_after_a_refused_step_as_if_it_had_never_been(
        self, tmp_path: Path
    ) -> None:
        """RNG state, schedules and counters do not advance either."""
        trainer = self.make_trainer(tmp_path / "run")
        undisturbed = self.make_trainer(tmp_path / "undisturbed-run")
        for step in (1, 2):
            with pytest.raises(StepRefusedError):
                trainer.step(self.poisoned_batches(step)[-1])
            first = trainer.step(self.make_batch(step))
            second = undisturbed.step(self.make_batch(step))
            assert first.metrics == second.metrics
            assert first.logprobs == second.logprobs
        state = self.state(trainer, tmp_path / "checkpoint")
        assert state == self.state(undisturbed, tmp_path / "undisturbed")

    def test_a_rehearsal_leaves_no_trace(self, tmp_path: Path) -> None:
        """It reports what the step will, and the step's result does not change."""
        if not self.rehearses:
            pytest.skip("this suite's trainer does not rehearse")
        trainer = self.make_trainer(tmp_path / "run")
        undisturbed = self.make_trainer(tmp_path / "undisturbed-run")
        for step in (1, 2):
            batch = self.make_batch(step)
            before = self.state(trainer, tmp_path / f"before-{step}")
            rehearsed = trainer.rehearse(batch)
            assert self.state(trainer, tmp_path / f"after-{step}") == before
            first, second = trainer.step(batch), undisturbed.step(batch)
            assert rehearsed.tokens_trained == first.tokens_trained > 0
            assert first.metrics == second.metrics
            assert first.logprobs == second.logprobs
            assert list(map(len, rehearsed.logprobs)) == list(map(len, first.logprobs))
        state = self.state(trainer, tmp_path / "checkpoint")
        assert state == self.state(undisturbed, tmp_path / "undisturbed")

    def test_a_rehearsal_refuses_what_a_step_would(self, tmp_path: Path) -> None:
        """And the state is unchanged."""
        if not self.rehearses:
            pytest.skip("this suite's trainer does not rehearse")
        trainer = self.make_trainer(tmp_path / "run")
        before = self.state(trainer, tmp_path / "before")
        with pytest.raises(StepRefusedError):
            trainer.rehearse(self.poisoned_batches(1)[-1])
        assert self.state(trainer, tmp_path / "after") == before

    def test_a_loaded_trainer_goes_on_as_the_saved_one(self, tmp_path: Path) -> None:
        """The saved state is complete: weights, optimiser, RNG state, steps."""
        trainer = self.make_trainer(tmp_path / "run")
        trainer.step(self.make_batch(1))
        trainer.save(tmp_path / "checkpoint")
        trainer.step(self.make_batch(2))
        other = self.make_trainer(tmp_path / "other-run")
        other.load(tmp_path / "checkpoint")
        other.step(self.make_batch(2))
        state = self.state(other, tmp_path / "b")
        assert state == self.state(trainer, tmp_path / "a")

    def test_a_damaged_checkpoint_is_refused_and_changes_nothing(self, tmp_path: Path) -> None:
        """Each file is truncated or missing in turn; the server detects other changes."""
        trainer = self.make_trainer(tmp_path / "run")
        trainer.step(self.make_batch(1))
        trainer.save(tmp_path / "checkpoint")
        trainer.step(self.make_batch(2))
        before = self.state(trainer, tmp_path / "before")
        for path in _files(tmp_path / "checkpoint"):
            whole = path.read_bytes()
            for damaged in (whole[: len(whole) // 2], None):
                path.unlink()
                if damaged is not None:
                    path.write_bytes(damaged)
                with pytest.raises(TrainerError):
                    trainer.load(tmp_path / "checkpoint")
                path.write_bytes(whole)
        assert self.state(trainer, tmp_path / "after") == before
        with pytest.raises(TrainerError):
            trainer.load(tmp_path / "nowhere")

    def test_what_was_sampled_as_it_is_trained_is_weighed_by_one(self, tmp_path: Path) -> None:
        """And nothing of it is truncated."""
        batch = self.make_batch(1)
        logprobs = self.make_truncating_trainer(tmp_path / "run").step(batch).logprobs
        if not logprobs:
            pytest.skip("this trainer reports no logprobs")
        calls = [replace(c, logprobs=row) for c, row in zip(batch.calls, logprobs, strict=True)]
        trainer = self.make_truncating_trainer(tmp_path / "other-run")
        metrics = trainer.step(replace(batch, calls=calls)).metrics
        assert metrics["importance_mean"] == pytest.approx(1, abs=1e-3)
        assert metrics["importance_max"] == pytest.approx(1, abs=1e-2)
        assert metrics["importance_capped"] == 0

    def test_an_importance_weight_is_truncated(self, tmp_path: Path) -> None:
        """Beyond the cap, the probability at sampling does not matter; the token is trained."""
        batch = self.make_batch(1)
        states = []
        for logprob in (-30.0, -35.0):
            trainer = self.make_truncating_trainer(tmp_path / f"run{logprob}")
            before = self.state(trainer, tmp_path / f"before{logprob}")
            calls = [replace(call, logprobs=[logprob] * 3) for call in batch.calls]
            report = trainer.step(replace(batch, calls=calls))
            assert report.metrics["importance_capped"] == 1
            assert report.metrics["importance_max"] > 2
            states.append(self.state(trainer, tmp_path / f"after{logprob}"))
            assert states[-1] != before
        assert states[0] == states[1]

    def test_steps_leave_no_tensors_behind(self, tmp_path: Path) -> None:
        """Memory of one step is free before the next."""
        trainer = self.make_trainer(tmp_path)
        for step in range(1, 4):
            trainer.step(self.make_batch(step))
        before = _live_tensors()
        for step in range(4, 8):
            trainer.step(self.make_batch(step))
        assert _live_tensors() <= before

    def test_an_unknown_weight_channel_is_refused(self, tmp_path: Path) -> None:
        """By name."""
        with pytest.raises(TrainerError, match="no-such-channel"):
            self.make_trainer(tmp_path).publish("no-such-channel", 1)

    def test_published_directories_hold_what_is_exported(self, tmp_path: Path) -> None:
        """And their configuration."""
        if "safetensors_dir" not in self.weight_channels:
            pytest.skip("this suite's trainer publishes no directories")
        trainer = self.make_trainer(tmp_path / "run")
        trainer.step(self.make_batch(1))
        update = trainer.publish("safetensors_dir", 1)
        trainer.export(tmp_path / "export")
        assert (update.channel, update.policy_version) == ("safetensors_dir", 1)
        assert (Path(update.location) / "config.json").is_file()
        _assert_same(_tensors(Path(update.location)), _tensors(tmp_path / "export"))

    def test_what_is_broadcast_is_what_is_exported(self, tmp_path: Path) -> None:
        """To all receivers, even during training; the next version replaces it."""
        if "collective" not in self.weight_channels:
            pytest.skip("this suite's trainer does not broadcast")
        trainer = self.make_trainer(tmp_path / "run")
        for version in (1, 2):
            trainer.step(self.make_batch(version))
            update = trainer.publish("collective", version)
            trainer.export(tmp_path / f"export-{version}")
            if version == 2:
                trainer.step(self.make_batch(3))
            assert (update.channel, update.policy_version) == ("collective", version)
            for _ in range(2):
                _assert_same(receive_once(update), _tensors(tmp_path / f"export-{version}"))
        trainer.close()
        with pytest.raises(EngineError):
            receive_once(update)

    def test_an_export_has_a_configuration(self, tmp_path: Path) -> None:
        """As a Hugging Face directory does."""
        trainer = self.make_trainer(tmp_path / "run")
        trainer.export(tmp_path / "export")
        assert (tmp_path / "export" / "config.json").is_file()


def _live_tensors() -> int:
    gc.collect()
    return sum(type(one).__name__ in {"Tensor", "Parameter"} for one in gc.get_objects())


def _tensors(directory: Path) -> dict[str, Any]:
    load_file = pytest.importorskip("safetensors.torch").load_file
    return {k: v for file in directory.glob("*.safetensors") for k, v in load_file(file).items()}


def _assert_same(state: dict[str, Any], expected: dict[str, Any]) -> None:
    assert state.keys() == expected.keys()
    for name, tensor in state.items():
        assert tensor.dtype == expected[name].dtype, name
        assert tensor.equal(expected[name]), name


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())
