"""A worker's end of the channel ``delta``."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from ajet_core.errors import EngineError
from ajet_core.interfaces import Engine, Trainer, WeightUpdate
from ajet_engines.deltas import ChainReader
from ajet_server.workers.delta_end import DeltaEnd, WeightPlaces

from .test_deltas import Versions, content


class Writes:
    """A trainer that publishes directories."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        assert channel == "safetensors_dir"
        directory, _ = self._versions.next()
        return WeightUpdate(channel, policy_version, str(directory), checksums={"w": ("1",)})


class Loads:
    """An engine that takes note of what it loads."""

    def __init__(self) -> None:
        self.loaded: list[tuple[int, dict[str, bytes]]] = []

    async def update_weights(self, update: WeightUpdate) -> None:
        assert update.channel == "safetensors_dir"
        assert update.checksums == {"w": ("1",)}
        self.loaded.append((update.policy_version, content(Path(update.location))))


@pytest.fixture
def trainer(tmp_path: Path) -> Any:
    return Writes(Versions(tmp_path / "trained"))


async def test_engine_and_trainer_need_not_know_of_the_channel(
    tmp_path: Path, trainer: Trainer
) -> None:
    end, engine = DeltaEnd(WeightPlaces(), tmp_path / "run"), Loads()
    for version in range(1, 4):
        update = end.publish(trainer, "delta", version)
        assert (update.channel, update.location) == ("delta", str(tmp_path / "run/weights-chain"))
        await end.receive(cast("Engine", engine), update)
        trained = content(tmp_path / "trained" / f"v{version}")
        assert engine.loaded[-1] == (version, trained)
    other = end.publish(trainer, "safetensors_dir", 4)
    await end.receive(cast("Engine", engine), other)
    assert other.channel == "safetensors_dir"
    assert engine.loaded[-1] == (4, content(tmp_path / "trained" / "v4"))


async def test_a_cancelled_update_leaves_the_next_one_working(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, engine = DeltaEnd(WeightPlaces(), tmp_path / "run"), cast("Any", Loads())
    going, real = threading.Event(), ChainReader.prepare

    def slow(reader: ChainReader, weights: Any) -> None:
        going.wait(60)
        real(reader, weights)

    monkeypatch.setattr(ChainReader, "prepare", slow)
    await end.receive(engine, end.publish(trainer, "delta", 1))
    second = asyncio.create_task(end.receive(engine, end.publish(trainer, "delta", 2)))
    for _ in range(5):
        await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    assert second.cancelled()
    going.set()
    await end.receive(engine, end.publish(trainer, "delta", 3))
    assert [version for version, _ in engine.loaded] == [1, 3]


async def test_without_a_spare_directory_updates_still_arrive(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise EngineError("no space left")

    monkeypatch.setattr(ChainReader, "prepare", full)
    end, engine = DeltaEnd(WeightPlaces(), tmp_path / "run"), cast("Any", Loads())
    for version in (1, 2, 3):
        await end.receive(engine, end.publish(trainer, "delta", version))
    assert [version for version, _ in engine.loaded] == [1, 2, 3]
