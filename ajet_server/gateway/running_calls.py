"""The prompts of an episode's running calls, and what they sampled so far, for those who watch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ajet_core.timeline import PlacedMessage
from ajet_server.gateway.cut_messages import CutMessage, cut_message
from ajet_server.gateway.formats.generation import Generation

MOST_CALLS = 16
"""The most calls that one look returns; the oldest come first."""
MOST_TOKENS = 2_000
"""The most tokens of a call that one look returns: the last ones."""

MOST_MESSAGES = 50
"""The most messages of a call that one look returns: the last ones."""
MESSAGE_CHARS = 10_000
"""As `cut_message` takes it."""
PROMPT_CHARS = 50_000
"""The most characters of a call's messages; the last message is always returned."""

# An episode counts as watched for so many seconds after a look.
_WATCHED_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RunningCall:
    """What a look at a running call returns.

    :param began_at: Unix seconds.
    :param tokens: number of tokens sampled so far.
    :param ids: [<= MOST_TOKENS] the last of them, without those that were seen before.
    :param version: policy version of the last token; None before the first one.
    :param messages: the last ones of its prompt, without those of a call that it continues; empty
        if the call was seen before.
    :param omitted: number of messages before them.
    """

    call_id: str
    agent: str
    began_at: float
    tokens: int
    ids: list[int]
    version: int | None
    messages: list[CutMessage] = field(default_factory=list)
    omitted: int = 0


@dataclass(frozen=True, slots=True)
class RunningSnapshot:
    """The running calls of an episode at one moment.

    :param more: number of further calls, which are not listed.
    """

    calls: list[RunningCall]
    more: int = 0


class _WatchedCall(NamedTuple):
    agent: str
    began_at: float
    prompt: Sequence[PlacedMessage]
    generation: Generation


class RunningCalls:
    """The calls of an episode that are being answered.

    A look reads what the calls keep anyway, so a call costs no more per token if it is watched, and
    a viewer who is slow makes nothing wait.
    """

    def __init__(self) -> None:
        self._running: dict[str, _WatchedCall] = {}
        self._watched_until = -math.inf

    @contextlib.contextmanager
    def showing(
        self,
        agent: str,
        began_at: float,
        prompt: Sequence[PlacedMessage],
        generations: Sequence[Generation],
    ) -> Iterator[None]:
        """Show the generations of a request while the context is open.

        :param prompt: its messages, without those of a call that it continues.
        """
        for generation in generations:
            shown = _WatchedCall(agent, began_at, prompt, generation)
            self._running[generation.request.request_id] = shown
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

    def look(self, seen: Mapping[str, int], now: float) -> RunningSnapshot:
        """Return the running calls, and count the episode as watched.

        :param seen: number of tokens that the viewer has seen, by call.
        """
        self.watch(now)
        shown = list(self._running.items())[:MOST_CALLS]
        return RunningSnapshot(
            [_running_call(call_id, call, seen.get(call_id)) for call_id, call in shown],
            len(self._running) - len(shown),
        )


def _running_call(call_id: str, call: _WatchedCall, seen: int | None) -> RunningCall:
    ids, versions = call.generation.sampled_ids, call.generation.policy_versions
    tokens = len(ids)
    messages = _last_messages(call.prompt) if seen is None else []
    return RunningCall(
        call_id=call_id,
        agent=call.agent,
        began_at=call.began_at,
        tokens=tokens,
        ids=ids[max(seen or 0, tokens - MOST_TOKENS) :],
        version=versions[-1] if versions else None,
        messages=messages,
        omitted=len(call.prompt) - len(messages) if messages else 0,
    )


def _last_messages(prompt: Sequence[PlacedMessage]) -> list[CutMessage]:
    shown: list[CutMessage] = []
    size = 0
    for placed in reversed(prompt[-MOST_MESSAGES:]):
        message = cut_message(placed.text, MESSAGE_CHARS)
        size += message.size
        if shown and size > PROMPT_CHARS:
            break
        shown.append(message)
    return shown[::-1]
