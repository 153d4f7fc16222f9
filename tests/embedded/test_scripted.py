"""The scripted engine and trainer do what tests of the server rely on."""

import asyncio
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import ContextLengthError, EngineError, StepRefusedError, TrainerError
from ajet_core.interfaces import GenerateChunk, GenerateRequest, SamplingParams, WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_core.timeline import (
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
)
from ajet_testing.faults import HoldGate
from ajet_testing.scripted_engine import (
    ScriptedEngine,
    ScriptedEngineSettings,
    scripted_logprob,
)
from ajet_testing.scripted_trainer import ScriptedTrainer, ScriptedTrainerSettings

MODEL = ModelConfig(path="model")


def make_engine(run_dir: Path, **settings: object) -> ScriptedEngine:
    return ScriptedEngine(ScriptedEngineSettings.model_validate(settings), WorkerContext(run_dir))


def request(prompt: list[int] | None = None, **sampling: object) -> GenerateRequest:
    params = SamplingParams(**{"max_tokens": 100, **sampling})  # type: ignore[arg-type]
    return GenerateRequest("request", prompt or [1, 2, 3], params)


async def answer(engine: ScriptedEngine, asked: GenerateRequest) -> list[GenerateChunk]:
    return [chunk async for chunk in engine.generate(asked)]


def ids(chunks: list[GenerateChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


async def test_the_reply_comes_in_chunks(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, reply_ids=[5, 6, 7, 2], chunk_tokens=3)
    chunks = await answer(engine, request(stop_token_ids=(2,)))
    assert [chunk.token_ids for chunk in chunks] == [[5, 6, 7], [2]]
    assert [chunk.finish_reason for chunk in chunks] == [None, "stop"]
    assert chunks[0].logprobs == [scripted_logprob(i) for i in (5, 6, 7)]


@pytest.mark.parametrize(
    ("sampling", "expected", "reason"),
    [
        ({"max_tokens": 2}, [5, 6], "length"),
        ({"max_tokens": 4}, [5, 6, 7, 2], "stop"),
        ({"stop_token_ids": (6,)}, [5, 6], "stop"),
    ],
)
async def test_a_reply_ends_where_it_must(
    tmp_path: Path, sampling: dict[str, Any], expected: list[int], reason: str
) -> None:
    chunks = await answer(make_engine(tmp_path, reply_ids=[5, 6, 7, 2]), request(**sampling))
    assert (ids(chunks), chunks[-1].finish_reason) == (expected, reason)


async def test_made_up_replies_depend_on_prompt_and_seed_alone(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    first = await answer(engine, request(seed=1, stop_token_ids=(2,)))
    assert ids(first)[-1] == 2
    assert len(ids(first)) == 9
    assert await answer(engine, request(seed=1, stop_token_ids=(2,))) == first
    assert ids(await answer(engine, request(seed=2, stop_token_ids=(2,)))) != ids(first)
    assert ids(await answer(engine, request([9], seed=1, stop_token_ids=(2,)))) != ids(first)


async def test_top_logprobs_begin_with_the_sampled_token(tmp_path: Path) -> None:
    (chunk,) = await answer(make_engine(tmp_path, reply_ids=[5]), request(top_logprobs=2))
    assert chunk.top_logprobs is not None
    assert [token for token, _ in chunk.top_logprobs[0]] == [5, 6]


async def test_the_context_is_a_limit(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, reply_ids=[5, 6, 7])
    info = await engine.start(MODEL.model_copy(update={"max_context": 4}))
    assert info.max_context == 4
    chunks = await answer(engine, request([1, 2]))
    assert (ids(chunks), chunks[-1].finish_reason) == ([5, 6], "length")
    with pytest.raises(ContextLengthError):
        await answer(engine, request([1, 2, 3, 4]))


async def test_new_weights_show_in_the_next_chunk(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, reply_ids=[5, 6], chunk_tokens=1)
    trainer = ScriptedTrainer(ScriptedTrainerSettings(), engine.context)
    trainer.start(MODEL, AlgorithmConfig())
    chunks = engine.generate(request())
    first = await anext(chunks)
    await engine.pause()
    second = asyncio.ensure_future(anext(chunks))
    await engine.update_weights(trainer.publish("in_process", 4))
    assert not second.done()
    await engine.resume()
    assert (first.policy_version, (await second).policy_version) == (0, 4)


async def test_weights_that_are_nowhere_are_refused(tmp_path: Path) -> None:
    other = ScriptedTrainer(ScriptedTrainerSettings(), WorkerContext(tmp_path))
    with pytest.raises(EngineError, match="no weights"):
        await make_engine(tmp_path).update_weights(other.publish("in_process", 1))


async def test_a_closed_generator_is_no_longer_running(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, chunk_tokens=1)
    chunks = engine.generate(request())
    await anext(chunks)
    assert (await engine.stats()).running == 1
    await chunks.aclose()  # type: ignore[attr-defined]
    assert (await engine.stats()).running == 0


async def test_closing_aborts_a_paused_request(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    await engine.pause()
    waiting = asyncio.ensure_future(answer(engine, request()))
    await asyncio.sleep(0)
    await engine.close()
    assert [chunk.finish_reason for chunk in await waiting] == ["abort"]


async def test_an_engine_raises_once(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, raises_at=2)
    await answer(engine, request())
    with pytest.raises(EngineError, match="scripted failure"):
        await answer(engine, request())
    await answer(engine, request())


async def test_an_engine_hangs_until_it_is_released(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, hangs_at=1, reply_ids=[5])
    with HoldGate(tmp_path, "engine") as gate:
        hanging = asyncio.ensure_future(answer(engine, request()))
        await asyncio.sleep(0)
        # A second request goes past the first.
        assert ids(await answer(engine, request())) == [5]
        assert not hanging.done()
        gate.release()
        assert ids(await hanging) == [5]


async def test_hanging_without_a_gate_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="HoldGate"):
        await answer(make_engine(tmp_path, hangs_at=1), request())


def make_trainer(run_dir: Path, **settings: object) -> ScriptedTrainer:
    trainer = ScriptedTrainer(
        ScriptedTrainerSettings.model_validate(settings), WorkerContext(run_dir)
    )
    trainer.start(MODEL, AlgorithmConfig())
    return trainer


def batch(step: int) -> TrainBatch:
    call = TrainCall("c", 0, 0.5, 1.0, [-0.5, -0.5], [0, 0])
    tree = TrainTree([TrainSegment(-1, [7, 1, 2], [TrainSpan(1, 0, 0, 2)])])
    return TrainBatch(f"batch-{step}", step, [TrainEpisode("e", "g", 1.0)], [call], [tree], 3)


def digest(trainer: ScriptedTrainer) -> str:
    return trainer.publish("in_process", 1).checksums["digest"][0]


def test_a_step_reports_what_it_was_given(tmp_path: Path) -> None:
    report = make_trainer(tmp_path).step(batch(1))
    assert (report.step, report.tokens_trained, report.tokens_processed, report.sequences) == (
        1,
        2,
        3,
        1,
    )


def test_a_tree_is_refused_since_it_knows_none(tmp_path: Path) -> None:
    segments = [TrainSegment(-1, [7]), TrainSegment(0, [1, 2], [TrainSpan(0, 0, 0, 2)])]
    trees = [TrainTree(segments)]
    with pytest.raises(TrainerError, match="2 segments"):
        make_trainer(tmp_path).step(replace(batch(1), trees=trees))


def test_a_loaded_trainer_goes_on_as_the_saved_one(tmp_path: Path) -> None:
    first = make_trainer(tmp_path)
    first.step(batch(1))
    first.save(tmp_path / "checkpoint")
    first.step(batch(2))
    second = make_trainer(tmp_path)
    second.load(tmp_path / "checkpoint")
    assert digest(second) != digest(first)
    second.step(batch(2))
    assert digest(second) == digest(first)


def test_a_step_that_raises_changes_nothing(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, raises_at=1)
    before = digest(trainer)
    with pytest.raises(TrainerError, match="scripted failure"):
        trainer.step(batch(1))
    assert digest(trainer) == before
    trainer.step(batch(1))


def test_a_trainer_refuses_a_step_when_it_is_told_to(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, refuses_at=2)
    trainer.step(batch(1))
    before = digest(trainer)
    with pytest.raises(StepRefusedError, match="scripted refusal of step 2"):
        trainer.step(batch(2))
    assert digest(trainer) == before
    trainer.step(batch(2))


def test_a_checkpoint_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="nowhere"):
        make_trainer(tmp_path).load(tmp_path / "nowhere")


def test_a_trainer_hangs_until_it_is_released(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, hangs_at=1)
    done = threading.Event()

    def work() -> None:
        trainer.step(batch(1))
        done.set()

    with HoldGate(tmp_path, "trainer") as gate:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert not done.is_set()
        gate.release()
        thread.join()
    assert done.is_set()


DYING = """
import sys
from pathlib import Path
from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_testing.scripted_trainer import ScriptedTrainer, ScriptedTrainerSettings
from ajet_core.timeline import TrainBatch

trainer = ScriptedTrainer(ScriptedTrainerSettings(dies_at=2), WorkerContext(Path(sys.argv[1])))
trainer.start(ModelConfig(path="model"), AlgorithmConfig())
for step in (1, 2):
    trainer.step(TrainBatch("batch", step, [], [], [], 0))
"""


@pytest.mark.processes
def test_a_trainer_dies_once_at_its_step(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DYING, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert subprocess.run(command, check=False).returncode == 0
