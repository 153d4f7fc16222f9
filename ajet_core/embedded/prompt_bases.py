"""What earlier calls of open episodes said, so that a prompt is stored as what is new in it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from ajet_core.embedded.codec import token_prefix
from ajet_core.timeline import Call

_CALLS_PER_EPISODE = 8
_MAX_TOKENS = 4_000_000


@dataclass(slots=True)
class _Episode:
    row_id: int
    calls: OrderedDict[str, tuple[int, Call]] = field(default_factory=OrderedDict)


class PromptBases:
    """The latest calls of the latest episodes, bounded in tokens; what has fallen out costs space, not truth.

    :param calls_per_episode: an episode's agents and branches go on from this many calls at once.
    :param max_tokens: prompt and sampled tokens of all calls that are held.
    """

    def __init__(
        self, calls_per_episode: int = _CALLS_PER_EPISODE, max_tokens: int = _MAX_TOKENS
    ) -> None:
        self._calls_per_episode = calls_per_episode
        self._max_tokens = max_tokens
        self._episodes: OrderedDict[str, _Episode] = OrderedDict()
        self._tokens = 0

    def episode_row(self, episode_id: str) -> int | None:
        """Row id of an episode, if it is known here."""
        found = self._episodes.get(episode_id)
        return None if found is None else found.row_id

    def know_episode(self, episode_id: str, row_id: int) -> None:
        """Remember an episode's row id."""
        if episode_id not in self._episodes:
            self._episodes[episode_id] = _Episode(row_id)

    def find(self, call: Call) -> tuple[int | None, int]:
        """The row id of the call that `call`'s prompt begins with, and how many tokens they share.

        Only the parent that `call` names is considered; (None, 0) if it is not held or shares nothing.
        """
        episode = self._episodes.get(call.episode_id)
        if episode is None or call.parent_call_id is None:
            return None, 0
        found = episode.calls.get(call.parent_call_id)
        if found is None:
            return None, 0
        row_id, parent = found
        episode.calls.move_to_end(call.parent_call_id)
        shared = shared_prefix(parent, call.prompt_ids)
        return (row_id, shared) if shared else (None, 0)

    def add(self, call: Call, row_id: int) -> None:
        """Hold a call of a known episode."""
        episode = self._episodes[call.episode_id]
        self._episodes.move_to_end(call.episode_id)
        episode.calls[call.call_id] = (row_id, call)
        self._tokens += _size(call)
        if len(episode.calls) > self._calls_per_episode:
            self._drop_oldest_call(episode)
        while self._tokens > self._max_tokens:
            episode_id, oldest = next(iter(self._episodes.items()))
            if oldest.calls:
                self._drop_oldest_call(oldest)
            if not oldest.calls:
                del self._episodes[episode_id]

    def forget(self, episode_id: str) -> None:
        """Drop an episode that makes no more calls."""
        episode = self._episodes.pop(episode_id, None)
        if episode is not None:
            self._tokens -= sum(_size(call) for _, call in episode.calls.values())

    def clear(self) -> None:
        """Drop everything: row ids may have been rolled back."""
        self._episodes.clear()
        self._tokens = 0

    def _drop_oldest_call(self, episode: _Episode) -> None:
        _, (_, call) = episode.calls.popitem(last=False)
        self._tokens -= _size(call)


def _size(call: Call) -> int:
    return len(call.prompt_ids) + len(call.sampled_ids)


def shared_prefix(parent: Call, prompt_ids: list[int]) -> int:
    """How many tokens of `parent`'s prompt and sampled tokens `prompt_ids` begins with.

    Compares slices, which is a loop in C; when everything is shared, each token is compared once.
    """
    prompt = len(parent.prompt_ids)
    total = prompt + len(parent.sampled_ids)
    if prompt_ids[:prompt] == parent.prompt_ids and prompt_ids[prompt:total] == parent.sampled_ids:
        return total
    tokens = token_prefix(parent, total)
    low, high = 0, min(total, len(prompt_ids))
    while low < high:
        middle = (low + high + 1) // 2
        if tokens[low:middle] == prompt_ids[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
