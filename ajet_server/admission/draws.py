"""Ids of episodes from which the seeds of an exact run follow."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

from ajet_server.gateway.call_seeds import DRAW_CHARACTERS

_ID_CHARACTERS = 24


class Draws:
    """Numbers the episodes of each task, so that each draws its own random numbers.

    A train episode that replaces an aborted one draws the same numbers. So it does not matter which
    episodes were aborted.

    :param seed: the run's seed.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._evaluated: set[str] = set()

    def episode_id(self, group: str, version: int, others: Iterable[str]) -> str:
        """Return a new id for an episode of a group.

        :param version: of the weights at the claim.
        :param others: ids of the group's episodes in the same batch that were not aborted.
        """
        taken = {episode_id[:DRAW_CHARACTERS] for episode_id in others}
        number = 0
        while (draw := self._draw("train", group, version, number)) in taken:
            number += 1
        return _unique(draw)

    def evaluation_id(self, group: str, version: int) -> str:
        """Return a new id for an evaluation episode of a group."""
        number = 0
        while (draw := self._draw("eval", group, version, number)) in self._evaluated:
            number += 1
        self._evaluated.add(draw)
        return _unique(draw)

    def restore(self, evaluated: Iterable[str]) -> None:
        """Use no number again that an evaluation episode has, after a restart.

        :param evaluated: ids of the evaluation episodes that were not aborted.
        """
        self._evaluated.update(episode_id[:DRAW_CHARACTERS] for episode_id in evaluated)

    def _draw(self, kind: str, group: str, version: int, number: int) -> str:
        named = f"{self._seed} {kind} {version} {number} {group}".encode()
        return hashlib.sha256(named).hexdigest()[:DRAW_CHARACTERS]


def _unique(draw: str) -> str:
    return draw + secrets.token_hex((_ID_CHARACTERS - DRAW_CHARACTERS) // 2)
