"""Bookkeeping of the KV slots: their tokens, their requests, and the prefixes that prompts share.

All state is in numpy arrays over the slots, so that a decode step needs no Python code for each
request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ajet_core.interfaces import GenerateRequest

DEFER_GAIN = 32
"""A request waits for another's prefill if that saves at least this many tokens."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The slot of a request.

    :param slot: the free slot to use.
    :param shared: number of prompt tokens whose keys and values are there already, or will be
        copied.
    :param source: the slot to copy them from; None if `slot` has them.
    """

    slot: int
    shared: int
    source: int | None


class SlotTable:
    """State of S slots of `capacity` tokens.

    ``tokens[s, :length[s]]`` are the slot's tokens, and ``logprobs`` those of the sampled ones. The
    first ``computed[s]`` tokens have keys and values in the cache. A free slot keeps its tokens for
    the next request that shares a prefix with them. ``ready`` slots decode; busy slots that are not
    ready are prefilled.
    """

    def __init__(self, slots: int, capacity: int, vocab_size: int) -> None:
        self.capacity = capacity
        self.vocab_size = vocab_size
        self.tokens = np.zeros((slots, capacity), np.int32)
        self.logprobs = np.zeros((slots, capacity), np.float32)
        self.uniforms = np.zeros((slots, capacity), np.float64)
        self.length = np.zeros(slots, np.int64)
        self.computed = np.zeros(slots, np.int64)
        self.end = np.zeros(slots, np.int64)
        self.busy = np.zeros(slots, np.bool_)
        self.ready = np.zeros(slots, np.bool_)
        self.stop = np.zeros((slots, vocab_size), np.bool_)
        self.temperature = np.ones(slots, np.float32)
        self.greedy = np.zeros(slots, np.bool_)
        self.top_p = np.ones(slots, np.float32)
        self.top_k = np.full(slots, vocab_size, np.int64)
        self.min_p = np.zeros(slots, np.float32)
        self.cut = np.zeros(slots, np.bool_)
        self.seeded = np.zeros(slots, np.bool_)
        self._special = np.zeros(slots, np.bool_)
        self._used = np.zeros(slots, np.int64)
        self._clock = 0

    def place(self, prompt: NDArray[np.int32]) -> Placement | None:
        """Return the best slot for a prompt [P], or None if it should wait.

        A prompt waits for a free slot, or for a prefill to share.

        The best slot is the free one that shares the longest prefix. If another slot shares more,
        or if the request would overwrite most of a slot although an older one is free, the prefix
        is copied instead.
        """
        free = np.flatnonzero(~self.busy)
        if not free.size:
            return None
        shared = self._shared_prefix(prompt)
        cached = np.minimum(shared, self.computed)
        # The last token is always computed, because its logits are needed.
        cached = np.minimum(cached, len(prompt) - 1)
        best = int(cached.argmax())
        coming = np.minimum(shared, np.where(self.busy, self.length, 0)).max()
        if min(int(coming), len(prompt) - 1) - int(cached[best]) >= DEFER_GAIN:
            return None
        home = int(free[cached[free].argmax()])
        if cached[home] == cached[best] and 2 * cached[home] >= self.computed[home]:
            return Placement(home, int(cached[home]), None)
        victim = int(free[self._used[free].argmin()])
        if victim == best or not cached[best]:
            return Placement(victim, int(cached[victim]), None)
        return Placement(victim, int(cached[best]), best)

    def _shared_prefix(self, prompt: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return [S] lengths of the longest common prefix of `prompt` and each slot's tokens."""
        width = min(len(prompt), int(self.length.max()))
        if not width:
            return np.zeros(len(self.length), np.int64)
        differ = self.tokens[:, :width] != prompt[:width]
        first = differ.argmax(1)
        first[~differ[np.arange(len(first)), first]] = width
        shared: NDArray[np.int64] = np.minimum(first, self.length)
        return shared

    def occupy(
        self,
        placement: Placement,
        prompt: NDArray[np.int32],
        request: GenerateRequest,
    ) -> None:
        """Assign a slot to a request whose first `Placement.shared` tokens it holds."""
        sampling = request.sampling
        slot, size = placement.slot, len(prompt)
        self.tokens[slot, :size] = prompt
        self.length[slot] = size
        self.computed[slot] = placement.shared
        self.end[slot] = min(size + sampling.max_tokens, self.capacity)
        self.busy[slot] = True
        self.ready[slot] = False
        self.stop[slot] = False
        self.stop[slot, list(sampling.stop_token_ids)] = True
        self.greedy[slot] = sampling.temperature == 0
        self.temperature[slot] = sampling.temperature or 1.0
        self.top_p[slot] = sampling.top_p
        self.top_k[slot] = min(sampling.top_k or self.vocab_size, self.vocab_size)
        self.min_p[slot] = sampling.min_p
        self.cut[slot] = (
            sampling.top_p < 1 or 0 < sampling.top_k < self.vocab_size or sampling.min_p > 0
        ) and sampling.temperature > 0
        self.seeded[slot] = sampling.seed is not None
        if sampling.seed is not None:
            generator = np.random.Generator(np.random.PCG64(sampling.seed % 2**64))
            count = int(self.end[slot]) - size
            # Skip the numbers of tokens that were sampled before.
            generator.random(request.sampled)
            self.uniforms[slot, size : size + count] = generator.random(count)
        self._special[slot] = self.greedy[slot] or self.cut[slot] or sampling.temperature != 1

    def release(self, slot: int) -> None:
        """Free a slot, keeping its content for reuse."""
        self._clock += 1
        self._used[slot] = self._clock
        self.busy[slot] = False
        self.ready[slot] = False

    def forget(self) -> None:
        """Mark all cached keys and values as invalid; busy slots are prefilled again."""
        self.computed[:] = 0
        self.ready[:] = False
        self.length[~self.busy] = 0

    def is_plain(self, rows: NDArray[np.int64]) -> bool:
        """Return whether all `rows` sample at temperature 1 from the whole distribution."""
        return not self._special[rows].any()

    def prefill_plan(
        self, order: NDArray[np.int64], budget: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Choose slots to prefill in one pass of at most `budget` padded tokens.

        The slot that has waited longest is always included; others join, the shortest first.

        :param order: slots to prefill, the oldest first; not empty.
        :return: slots [n] and numbers of tokens to compute [n]; n * max(tokens) <= budget.
        """
        remaining = self.length[order] - self.computed[order]
        width = min(int(remaining[0]), budget)
        chosen = [0]
        for index in (np.argsort(remaining[1:], kind="stable") + 1).tolist():
            wider = max(width, min(int(remaining[index]), budget))
            if wider * (len(chosen) + 1) > budget:
                break
            width = wider
            chosen.append(index)
        return order[chosen], np.minimum(remaining[chosen], width)
