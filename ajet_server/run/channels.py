"""The weight channel of a run."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.errors import ChannelError
from ajet_core.plugin import EngineSpec, TrainerSpec
from ajet_engines.deltas import CHANNEL
from ajet_server.workers.delta_end import DIRECTORY

__all__ = ["DELTA", "IN_PROCESS", "choose_channel", "common_channels"]

IN_PROCESS = "in_process"
DELTA = CHANNEL


def common_channels(trainer: TrainerSpec, engine: EngineSpec, *, together: bool) -> list[str]:
    """Return the weight channels that a trainer and an engine can use, best first.

    Any pair that exchanges directories can also exchange differences of them.

    :param together: whether they run in one process.
    """
    offered, accepted = _channels(trainer, engine, together=together)
    return [channel for channel in offered if channel in accepted]


def choose_channel(
    trainer: TrainerSpec, engine: EngineSpec, wanted: str | None, *, together: bool
) -> str:
    """Return the weight channel to use: `wanted`, or the trainer's first that the engine accepts.

    :param together: whether they run in one process.
    :raises ChannelError: trainer and engine have no channel in common, or not the wanted one.
    """
    for channel in common_channels(trainer, engine, together=together):
        if wanted in (None, channel):
            return channel
    offered, accepted = _channels(trainer, engine, together=together)
    if wanted is not None:
        raise ChannelError(
            f"trainer {trainer.name!r} and engine {engine.name!r} cannot use the weight channel "
            f"{wanted!r} here: the trainer offers {_listed(offered)}, the engine accepts "
            f"{_listed(accepted)}",
            param="weight_channel",
        )
    raise ChannelError(
        f"trainer {trainer.name!r} and engine {engine.name!r} have no weight channel in "
        f"common: the trainer offers {_listed(offered)}, the engine accepts "
        f"{_listed(accepted)}; choose another engine or trainer",
        param="engine.name",
    )


def _channels(trainer: TrainerSpec, engine: EngineSpec, *, together: bool) -> list[tuple[str, ...]]:
    """Return the channels that the trainer offers, and those that the engine accepts."""
    able = tuple(c for c in trainer.capabilities.weight_channels if together or c != IN_PROCESS)
    return [
        (*channels, DELTA) if DIRECTORY in channels else channels
        for channels in (able, engine.capabilities.weight_channels)
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"
