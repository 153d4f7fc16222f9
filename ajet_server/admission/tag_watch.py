"""Detect tags of a mixture that no client rolls out, and give their slots to others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from ajet_core.protocol import ServerState
from ajet_server.admission.admission import Admission
from ajet_server.admission.batching import BatchBuilder
from ajet_server.observe.events import EventLog
from ajet_server.state import StateBoard

_log = logging.getLogger("ajet.server")

_LOOKS_PER_GRACE = 5
_LONGEST_PAUSE = 1.0
_SHORTEST_PAUSE = 0.05


@dataclass(slots=True)
class TagWatch:
    """Decides which tags give their slots to the others.

    Only time in which clients could roll out counts. A tag that was absent when a batch was made
    is still absent when the next one starts, so its grace time is waited for only once.

    :ivar deserted: at the last look, no client had wanted any tag for the grace time.
    """

    deserted: bool = field(default=False, init=False)
    _absent: dict[str, float] = field(default_factory=dict)
    _looked_at: float = 0.0

    def look(
        self,
        tags: Set[str],
        wanted: Set[str],
        now: float,
        *,
        grace_seconds: float,
        blocked: Set[str] = frozenset(),
    ) -> Set[str]:
        """Return the tags whose slots go to the others.

        :param tags: the tags that have slots in the batch.
        :param wanted: the tags that clients roll out or wait to roll out.
        :param now: seconds, monotonic.
        :param blocked: the result of the last look at this batch. A tag in it that returns waits
            for the next batch: its slots are given away already.
        """
        passed = now - self._looked_at
        self._looked_at = now
        self._absent = {
            tag: 0.0 if tag in wanted or tag not in self._absent else self._absent[tag] + passed
            for tag in tags
        }
        gone = {tag for tag in tags - wanted if self._absent[tag] >= grace_seconds}
        self.deserted = tags <= gone
        if not tags <= gone | blocked:
            return gone | blocked
        # If no other tag is left, unblock the tags that returned, so that the batch does not wait.
        return blocked if self.deserted else gone

    def rest(self, now: float) -> None:
        """Skip the time since the last look: no rollout was possible or needed."""
        self._looked_at = now


class TagKeeper:
    """Gives the slots of tags that no client rolls out to the others.

    :param wanted: returns the tags that clients roll out or wait to roll out.
    :param clock: seconds, monotonic.
    """

    def __init__(
        self,
        builder: BatchBuilder,
        admission: Admission,
        board: StateBoard,
        events: EventLog,
        *,
        wanted: Callable[[], Set[str]],
        clock: Callable[[], float],
    ) -> None:
        self._builder, self._admission = builder, admission
        self._board, self._events = board, events
        self._wanted = wanted
        self._clock = clock
        self._watch = TagWatch()
        self._known: Set[str] = frozenset()

    async def keep(self) -> None:
        """Look periodically until cancelled."""
        while True:
            try:
                self.look()
            # One failure must not end the loop: a tag without clients would block the batch.
            except Exception:  # noqa: BLE001
                _log.exception("the search for tags without clients failed")
            await asyncio.sleep(
                min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, self._grace / _LOOKS_PER_GRACE))
            )

    def look(self) -> None:
        """Block the tags that no client has wanted for the grace time."""
        builder, slots = self._builder, self._builder.slots
        rolling = slots.mixture is not None and self._board.state is ServerState.ROLLING
        # Do not divide the slots of a full batch again: rounding might require a task that is not
        # ready, when episodes can no longer start.
        if not rolling or builder.is_full():
            self._watch.rest(self._clock())
            return
        before, wanted = slots.blocked, self._wanted()
        tags = {tag for tag, ratio in slots.ratios.items() if ratio > 0}
        blocked = self._watch.look(
            tags, wanted, self._clock(), grace_seconds=self._grace, blocked=before
        )
        if self._watch.deserted and builder.hand_over(wanted):
            self._tell(tags, "clients that wait for a later batch")
            blocked = tags
        elif blocked != before:
            builder.block(blocked)
            self._tell(blocked - before, "the others")
        self._known = (self._known | blocked) - wanted

    def _tell(self, tags: Set[str], heirs: str) -> None:
        """Report that the slots of some tags are given away."""
        # Warn once, not for every batch in which the tags are absent.
        if not tags <= self._known:
            _log.warning(
                "no client is working on %s: their share of the batch goes to %s",
                sorted(tags),
                heirs,
            )
        details = {"what": "blocked", "tags": sorted(tags), "slots": self._builder.slots.quotas}
        self._events.emit("mixture", details)
        self._admission.admit()
        self._board.touch()

    @property
    def _grace(self) -> float:
        mixture = self._builder.slots.mixture
        return mixture.grace_seconds if mixture is not None else _LONGEST_PAUSE
