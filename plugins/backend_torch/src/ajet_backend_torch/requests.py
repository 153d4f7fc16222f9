"""Requests in the engine, and the delivery of their outcomes to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ajet_core.errors import AjetError
from ajet_core.interfaces import FinishReason, GenerateChunk, GenerateRequest
from ajet_engines.shaping import Shaping

Outcome = GenerateChunk | AjetError
TopLogprobs = list[tuple[int, float]]

MOST_KEPT_BYTES = 2**22
"""The distinct sets of kept tokens of a request may take so many bytes."""


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request from its submission to its last chunk.

    Only the decode thread uses it, except for `mail`.

    :param prompt: [P] int32.
    :param mail: the queue that the caller's generator reads; filled on the event loop.
    :param slot: the KV slot, -1 while the request waits.
    :param cached_tokens: prompt tokens whose keys and values were in the cache at its start.
    :param sent: number of sampled tokens that were sent to the caller.
    :param versions: (number of previously sampled tokens, policy version), in order.
    :param shaping: changes to the distribution that tokens are drawn from, if any.
    :param top_logprobs: one list for each sampled token that is not sent yet, if requested;
        `sampled_from` likewise.
    :ivar reports: whether to report what its tokens are sampled from.
    """

    request: GenerateRequest
    prompt: NDArray[np.int32]
    mail: asyncio.Queue[Outcome]
    shaping: Shaping | None = None
    slot: int = -1
    cached_tokens: int = 0
    sent: int = 0
    versions: list[tuple[int, int]] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    sampled_from: list[tuple[float, bytes]] = field(default_factory=list)

    reports: bool = field(init=False)
    _kept: dict[bytes, bytes] = field(default_factory=dict)
    _kept_bytes: int = 0

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self.reports = sampling.sampled_from and sampling.samples_otherwise

    def report(self, logprob: float, kept: bytes) -> None:
        """Note what the next token was sampled from; see `GenerateChunk.sampled_from`.

        A request whose distributions would take more than `MOST_KEPT_BYTES` reports none from then
        on, and is recorded without them.
        """
        if kept not in self._kept:
            self._kept[kept] = kept
            self._kept_bytes += len(kept)
        if self._kept_bytes > MOST_KEPT_BYTES:
            self.reports = False
            self.sampled_from.clear()
            self._kept.clear()
        else:
            self.sampled_from.append((logprob, self._kept[kept]))

    def note_version(self, sampled: int, version: int) -> None:
        """Record that tokens from index `sampled` on are sampled by `version`."""
        if self.versions and self.versions[-1][0] == sampled:
            self.versions.pop()
        if not self.versions or self.versions[-1][1] != version:
            self.versions.append((sampled, version))

    def chunks(
        self,
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
        finish_reason: FinishReason | None,
    ) -> list[GenerateChunk]:
        """Return the tokens not yet sent as chunks of one policy version each.

        :param tokens: [T] all sampled tokens so far.
        :param logprobs: [T] their logprobs.
        :param finish_reason: reason of the last chunk, which is made even if no tokens are left.
        """
        total = len(tokens)
        chunks: list[GenerateChunk] = []
        for index, (since, version) in enumerate(self.versions):
            is_last = index + 1 == len(self.versions)
            start = max(since, self.sent)
            stop = total if is_last else self.versions[index + 1][0]
            if start >= stop and not (is_last and finish_reason):
                continue
            unsent = slice(start - self.sent, stop - self.sent)
            wants_top = self.request.sampling.top_logprobs > 0
            chunks.append(
                GenerateChunk(
                    token_ids=tokens[start:stop].tolist(),
                    logprobs=logprobs[start:stop].tolist(),
                    policy_version=version,
                    finish_reason=finish_reason if is_last else None,
                    top_logprobs=self.top_logprobs[unsent] if wants_top else None,
                    sampled_from=self.sampled_from[unsent] if self.reports else None,
                    cached_tokens=None if self.sent or chunks else self.cached_tokens,
                )
            )
        self.sent = total
        self.top_logprobs.clear()
        self.sampled_from.clear()
        return chunks


class Post:
    """Deliver outcomes to the event loop, all those of one step in a single call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: list[tuple[ActiveRequest, Sequence[Outcome]]] = []

    def put(self, request: ActiveRequest, outcomes: Sequence[Outcome]) -> None:
        """Queue outcomes until `flush`."""
        self._pending.append((request, outcomes))

    def flush(self) -> None:
        """Send the queued outcomes."""
        if self._pending and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_deliver, self._pending)
        self._pending = []


def _deliver(outcomes: list[tuple[ActiveRequest, Sequence[Outcome]]]) -> None:
    for request, items in outcomes:
        for item in items:
            request.mail.put_nowait(item)
