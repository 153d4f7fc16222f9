"""The answers of a run's best episodes, which `ajet sft` trains on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ajet_cli.sft.best_episodes import BestChoice, best_episodes
from ajet_core.errors import RequestError
from ajet_core.interfaces import SampleStore, WorkerContext
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.sqlite_store import SqliteStore
from tests.inspect.recorded import Recording, make_model_dir, said


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """Two episodes, each with a title and an answer."""
    made = Recording(make_model_dir(tmp_path / "model"))
    for name, reward in (("good", 1.0), ("bad", 0.0)):
        episode = made.episode(name)
        made.call(episode, [said("user", "hello")], "it was", agent="titles")
        made.call(episode, [said("user", "hello there")], "the answer")
        made.end(episode, reward)
    return made


def store_of(run_dir: Path) -> SampleStore:
    return SqliteStore(SqliteStoreSettings(), WorkerContext(run_dir))


def choice(directory: Path) -> BestChoice:
    return BestChoice(share=0.5, least=0.5, note=directory / "note")


async def test_the_calls_of_the_best_are_taken(recording: Recording, tmp_path: Path) -> None:
    run_dir = await recording.save(tmp_path / "run")
    (example,) = await best_episodes(run_dir, store_of(run_dir), choice(tmp_path))
    assert [call.agent for call in example] == ["titles", "solver"]


@pytest.mark.parametrize("by_claim", [True, False])
async def test_calls_of_agents_that_are_not_trained_are_left_out(
    recording: Recording, tmp_path: Path, by_claim: bool
) -> None:
    if by_claim:
        rules = {"untrained_agents": ["titles"]}
        recording.episodes = [replace(one, rules=rules) for one in recording.episodes]
    else:
        recording.untrained_agents = ("titles",)
    run_dir = await recording.save(tmp_path / "run")
    (example,) = await best_episodes(run_dir, store_of(run_dir), choice(tmp_path))
    assert [call.agent for call in example] == ["solver"]


async def test_a_run_that_trains_none_of_its_agents_has_nothing_to_learn(
    recording: Recording, tmp_path: Path
) -> None:
    recording.untrained_agents = ("titles", "solver")
    run_dir = await recording.save(tmp_path / "run")
    with pytest.raises(RequestError, match="can be trained on"):
        await best_episodes(run_dir, store_of(run_dir), choice(tmp_path))


async def test_the_best_of_each_task_are_taken(tmp_path: Path) -> None:
    recording = Recording(make_model_dir(tmp_path / "model"))
    for name, reward in (("a1", 1.0), ("a2", 0.9), ("b1", 0.1), ("b2", 0.2)):
        episode = recording.episode(name, task=name[0])
        recording.call(episode, [said("user", "hello")], "it was")
        recording.end(episode, reward)
    run_dir = await recording.save(tmp_path / "run")
    chosen = BestChoice(share=1.0, least=0.0, note=tmp_path / "note", top=1)
    examples = await best_episodes(run_dir, store_of(run_dir), chosen)
    assert [example[0].episode_id for example in examples] == ["a1", "b2"]
