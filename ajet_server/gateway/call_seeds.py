"""Seeds of the calls of an exact run, which do not depend on the order of its requests."""

from __future__ import annotations

import hashlib
import itertools
import random
from array import array
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

DRAW_CHARACTERS = 16
"""The first characters of an exact run's episode id are the same in all runs of one seed."""


class EpisodeSeeds:
    """Gives each call of an episode a seed that follows from its episode and its prompt.

    Calls with the same prompt get different seeds. If no client saw the answer of a call, the next
    call with its prompt gets its seed again.

    :param episode_id: of the episode.
    The server may have been killed between recording an answer and sending it. So the first request
    after a restart, if it is a retry, may repeat the last answered call.

    :param answered: id and prompt [P] of each answered call, in order, after a restart.
    """

    def __init__(self, episode_id: str, answered: Iterable[tuple[str, Sequence[int]]]) -> None:
        self._draw = episode_id[:DRAW_CHARACTERS].encode()
        # Numbers of the calls with a prompt, by its digest.
        self._calls: defaultdict[bytes, set[int]] = defaultdict(set)
        self._last: CallSeeds | None = None
        for call_id, prompt_ids in answered:
            digest = _digest(prompt_ids)
            number = _smallest_not_in(self._calls[digest])
            self._calls[digest].add(number)
            seed = self._seed(digest, number)
            self._last = CallSeeds(self, digest, (number,), (seed,), repeats=call_id)

    def take(self, prompt_ids: Sequence[int], count: int, *, is_retry: bool = False) -> CallSeeds:
        """Return the seeds of `count` calls with a prompt [P]."""
        digest = _digest(prompt_ids)
        last, self._last = self._last, None
        if is_retry and count == 1 and last is not None and last.digest == digest:
            return last
        calls = self._calls[digest]
        numbers = []
        for _ in range(count):
            numbers.append(_smallest_not_in(calls))
            calls.add(numbers[-1])
        return CallSeeds(
            self, digest, tuple(numbers), tuple(self._seed(digest, number) for number in numbers)
        )

    def give_back(self, seeds: CallSeeds, choice: int) -> None:
        """Give the seed of a call to the next call with the same prompt."""
        if seeds.repeats:
            self._last = seeds
        else:
            self._calls[seeds.digest].discard(seeds.numbers[choice])

    def _seed(self, digest: bytes, number: int) -> int:
        named = hashlib.sha256(self._draw + digest + number.to_bytes(8, "big"))
        return int.from_bytes(named.digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class CallSeeds:
    """The seeds of the choices of a request.

    :param digest: of the request's prompt.
    :param numbers: by choice, among the calls of the episode with this prompt.
    :param seeds: by choice, each in [0, 2**63).
    :param repeats: id of the recorded call that the request makes again; "" if it makes a new one.
    """

    episode: EpisodeSeeds
    digest: bytes
    numbers: tuple[int, ...]
    seeds: tuple[int, ...]
    repeats: str = ""

    def token_hex(self, choice: int) -> Callable[[int], str]:
        """Return the source of the random ids in a choice."""
        ids = random.Random(self.seeds[choice])  # noqa: S311 - ids need not be secret
        return lambda size: ids.randbytes(size).hex()

    def give_back(self, choice: int) -> None:
        """Undo the choice of a seed, because no client sees the call."""
        self.episode.give_back(self, choice)


def _smallest_not_in(numbers: Container[int]) -> int:
    return next(number for number in itertools.count() if number not in numbers)


def _digest(prompt_ids: Sequence[int]) -> bytes:
    return hashlib.sha256(array("I", prompt_ids).tobytes()).digest()
