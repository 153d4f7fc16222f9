"""A worker's end of the weight channel ``delta``: components write and read directories."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from ajet_core.interfaces import Trainer, WeightUpdate
from ajet_engines.deltas import CHANNEL, ChainReader, ChainWriter

__all__ = ["DIRECTORY", "DeltaEnd", "WeightPlaces"]

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

    def publish(self, trainer: Trainer, channel: str, policy_version: int) -> WeightUpdate:
        """Publish the trainer's weights.

        :raises AjetError: as `Trainer.publish`, or the chain cannot be written.
        """
        if channel != CHANNEL:
            return trainer.publish(channel, policy_version)
        if self._writer is None:
            self._writer = ChainWriter(self._url)
        update = trainer.publish(DIRECTORY, policy_version)
        entry = self._writer.publish(Path(update.location), policy_version)
        return replace(
            update,
            channel=CHANNEL,
            location=self._read_url,
            metadata={**update.metadata, "chain": self._writer.chain, "bytes": str(entry.size)},
        )

    async def received(self, update: WeightUpdate) -> WeightUpdate:
        """Return the update as the engine reads it.

        :raises AjetError: the chain cannot be read.
        """
        if update.channel != CHANNEL:
            return update
        if self._reader is None:
            self._reader = ChainReader(self._read_url, self._cache)
        reading = await asyncio.to_thread(
            self._reader.read, update.policy_version, update.metadata.get("chain")
        )
        return replace(update, channel=DIRECTORY, location=str(reading.directory))
