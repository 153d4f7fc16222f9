"""A worker's end of the weight channel ``delta``: components write and read directories."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from ajet_core.errors import EngineError
from ajet_core.interfaces import Engine, Trainer, WeightUpdate
from ajet_engines.deltas import CHANNEL, ChainReader, ChainWriter, LocalWeights

__all__ = ["DIRECTORY", "DeltaEnd", "WeightPlaces"]

_log = logging.getLogger("ajet.weights")

DIRECTORY = "safetensors_dir"
"""The channel that trainer and engine use themselves."""


@dataclass(frozen=True, slots=True)
class WeightPlaces:
    """Where the weights of the channel ``delta`` are.

    :param url: where the trainer writes the chain; None for the run directory.
    :param read_url: where engines read it; None for `url`.
    :param cache: the directory in which engines keep the last versions; None for the run directory.
    """

    url: str | None = None
    read_url: str | None = None
    cache: str | None = None


class DeltaEnd:
    """Publishes and receives weights; those of other channels pass through."""

    def __init__(self, places: WeightPlaces, run_dir: Path) -> None:
        url = places.url or str(run_dir / "weights-chain")
        self._url, self._read_url = url, places.read_url or url
        self._cache = Path(places.cache) if places.cache else run_dir / "weights-cache"
        self._writer: ChainWriter | None = None
        self._reader: ChainReader | None = None
        self._preparing: asyncio.Task[None] | None = None

    def publish(self, trainer: Trainer, channel: str, policy_version: int) -> WeightUpdate:
        """Publish the trainer's weights.

        :raises AjetError: as `Trainer.publish`, or the chain cannot be written.
        """
        if channel != CHANNEL:
            return trainer.publish(channel, policy_version)
        if self._writer is None:
            self._writer = ChainWriter(self._url)
        update = trainer.publish(DIRECTORY, policy_version)
        self._writer.publish(Path(update.location), policy_version)
        return replace(
            update,
            channel=CHANNEL,
            location=self._read_url,
            metadata={**update.metadata, "chain": self._writer.chain},
        )

    async def receive(self, engine: Engine, update: WeightUpdate) -> None:
        """Let the engine load an update.

        :raises AjetError: as `Engine.update_weights`, or the chain cannot be read.
        """
        if update.channel != CHANNEL:
            await engine.update_weights(update)
            return
        if self._preparing is not None:
            # Not awaited directly: if this is cancelled, it must continue.
            await asyncio.wait([self._preparing])
        if self._reader is None:
            setting = "weights.read_url" if self._read_url != self._url else "weights.url"
            self._reader = ChainReader(self._read_url, self._cache, setting)
        reader, chain = self._reader, update.metadata.get("chain")
        weights = await asyncio.to_thread(reader.read, update.policy_version, chain)
        await engine.update_weights(
            replace(update, channel=DIRECTORY, location=str(weights.directory))
        )
        self._preparing = asyncio.create_task(asyncio.to_thread(_prepare, reader, weights))


def _prepare(reader: ChainReader, weights: LocalWeights) -> None:
    try:
        reader.prepare(weights)
    except EngineError as error:
        _log.warning("the next weights are read more slowly: %s", error)
