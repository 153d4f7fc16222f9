"""What the running calls of an episode have sampled so far, for those who watch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ajet_server.gateway.formats.generation import Generation

MOST_CALLS = 16
"""The most calls that one look returns; the oldest come first."""
MOST_TOKENS = 2_000
"""The most tokens of a call that one look returns: the last ones."""

# An episode counts as watched for so many seconds after a look.
_WATCHED_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RunningCall:
    """What a look at a running call returns.

    :param began_at: Unix seconds.
    :param tokens: number of tokens sampled so far.
    :param ids: [<= MOST_TOKENS] the last of them, without those that were seen before.
    :param version: policy version of the last token; None before the first one.
    """

    call_id: str
    agent: str
    began_at: float
    tokens: int
    ids: list[int]
    version: int | None


@dataclass(frozen=True, slots=True)
class CallsInSight:
    """The running calls of an episode at one moment.

    :param more: number of further calls, which are not listed.
    """

    calls: list[RunningCall]
    more: int = 0


class RunningCalls:
    """The calls of an episode that are being answered.

    A look reads what the calls keep anyway, so a call costs no more per token if it is watched, and
    a viewer who is slow makes nothing wait.
    """

    def __init__(self) -> None:
        self._running: dict[str, tuple[str, float, Generation]] = {}
        self._watched_until = -math.inf

    @contextlib.contextmanager
    def showing(
        self, agent: str, began_at: float, generations: Sequence[Generation]
    ) -> Iterator[None]:
        """Show the generations of a request while the context is open."""
        for generation in generations:
            self._running[generation.request.request_id] = agent, began_at, generation
        try:
            yield
        finally:
            for generation in generations:
                self._running.pop(generation.request.request_id, None)

    def watched(self, now: float) -> bool:
        """Return whether somebody looked a moment ago.

        :param now: Unix seconds.
        """
        return now < self._watched_until

    def watch(self, now: float) -> None:
        """Count the episode as watched from now on, for a moment."""
        self._watched_until = now + _WATCHED_SECONDS

    def look(self, seen: Mapping[str, int], now: float) -> CallsInSight:
        """Return the running calls, and count the episode as watched.

        :param seen: number of tokens that the viewer has seen, by call.
        """
        self.watch(now)
        shown = list(self._running.items())[:MOST_CALLS]
        return CallsInSight(
            [
                _running_call(call_id, agent, began_at, generation, seen.get(call_id, 0))
                for call_id, (agent, began_at, generation) in shown
            ],
            len(self._running) - len(shown),
        )


def _running_call(
    call_id: str, agent: str, began_at: float, generation: Generation, seen: int
) -> RunningCall:
    ids, versions = generation.sampled_ids, generation.policy_versions
    tokens = len(ids)
    return RunningCall(
        call_id=call_id,
        agent=agent,
        began_at=began_at,
        tokens=tokens,
        ids=ids[max(seen, tokens - MOST_TOKENS) :],
        version=versions[-1] if versions else None,
    )
