"""How many episodes are open at once: no I/O, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self

from ajet_core.timeline import Call

_FIRST = 64
_FEWEST = 4
# The limit is looked at after as many calls as there are open episodes, or this many.
_FEWEST_CALLS = 32
# Engines cache keys and values in blocks of this many tokens, or fewer.
_BLOCK = 128
# The share of missed tokens to which the limit is steered. Beyond it, misses soon cost more than
# more episodes gain.
_TARGET = 0.06
_CUT_PER_MISS, _MOST_CUT = 0.5, 0.3
# Misses that follow a larger cut than this are not counted until it has taken effect.
_LARGE_CUT = 0.1
# The rise for each miss below the target, while as many episodes end as are open.
_RISE_PER_MISS = 1.0
# Rises and rates count only while this share of the limit is open.
_USED = 0.85
# The gain in calls for a gain in episodes, both relative, from which misses are accepted.
_WORTH = 0.5
_MORE_MISSES = 0.03
# What a look keeps of the looks before it.
_MEMORY, _TARGET_MEMORY = 0.93, 0.95
# The gain is estimated from at least so many looks at limits that differ by so much.
_FEWEST_LOOKS, _LEAST_SPREAD = 4.0, 0.06
# The mean length is that of about so many calls.
_CALLS_OF_MEAN = 512


@dataclass(frozen=True, slots=True)
class CallUse:
    """What a call used of the engine's cache.

    :param length: number of tokens of its prompt and answer.
    :param cached: prompt tokens that the engine read from its cache; None if it does not report
        them.
    :param expected: prompt tokens that the engine had computed for the same episode with the same
        weights; None if weights have changed since.
    :param version: of the weights that sampled its first token, None without tokens.
    """

    length: int
    cached: int | None
    expected: int | None
    version: int | None

    @classmethod
    def of(cls, call: Call, cached: int | None) -> Self:
        """Return what a call used.

        :param cached: as in the class.
        """
        version, base = call.policy_versions[:1], call.base
        expected: int | None = 0
        if base is not None:
            same = version == base.policy_versions[-1:]
            # The keys and values of the last sampled token are not computed.
            expected = max(0, min(call.shared, base.length - 1) - _BLOCK) if same else None
        return cls(call.length, cached, expected, version[0] if version else None)


class Concurrency:
    """Limits the episodes that are open at once.

    Each call of an episode repeats the tokens of the call before. The engine still has their keys
    and values, unless those of too many other episodes took their place in its cache; then it
    computes them again. So the limit falls while many tokens are missed in the cache, and rises
    while few are and claims wait for it.

    Misses are accepted where more episodes still make more calls per second, for example because
    their tools are slow. This is estimated by a regression over the last looks.

    The limit is kept as a number of tokens, because the cache holds tokens, and divided by the mean
    length of calls. It rises slowly, because an episode needs more of the cache with each turn.

    :param setting: as `RolloutConfig.concurrency`; None never limits.
    :ivar fixed: the number that was set; None if there is none.
    :ivar missed: the share of tokens that the engine computed again at the last look, of those that
        it had computed for the same episode.
    """

    def __init__(self, setting: int | Literal["auto"] | None) -> None:
        self._auto = setting == "auto"
        self.fixed = None if setting == "auto" else setting
        self.missed = 0.0
        self._target = _TARGET
        self._first = _FIRST
        # Tokens of open episodes that fit into the cache; None before too many were missed.
        self._fits: float | None = None
        self._mean_length, self._seen = 0.0, 0
        # Sums over looks, for the regression: 1, log(episodes), log(rate), and products.
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._settling = False
        self._bound = False
        self._ended, self._ended_ever = 0, 0
        self._version: int | None = None
        # Whether anything was ever found in the cache, and whether the search for it has ended.
        self._finds, self._hopeless, self._unreported = False, False, 0
        # Since the last look.
        self._since: float | None = None
        self._steady = True
        self._calls, self._tokens, self._open, self._expected, self._found = 0, 0, 0, 0, 0

    @property
    def limit(self) -> int | None:
        """The number of episodes that may be open; None means no limit."""
        if self._fits is None:
            return self.fixed
        return max(_FEWEST, round(self._fits / max(1.0, self._mean_length)))

    @property
    def advised(self) -> int | None:
        """The number of episodes that clients should run; None means any number.

        Before it is known how many are too many, this is a cautious number that is not enforced: a
        client may need its episodes to wait for each other.
        """
        cautious = self._auto and self._fits is None and not self._hopeless
        return self._first if cautious else self.limit

    def has_room(self, open_episodes: int) -> bool:
        """Return whether one more episode may be open."""
        limit = self.limit
        return limit is None or open_episodes < limit

    def bind(self) -> None:
        """Record that a claim waits because of the limit alone."""
        self._bound = True

    def ended(self) -> None:
        """Record that an episode is over."""
        self._ended += 1
        self._ended_ever += 1

    def called(self, use: CallUse, open_episodes: int, now: float) -> bool:
        """Record a call; return whether the limit may have risen.

        If the engine never reports what it reads from its cache, or finds nothing there, there is
        no limit.

        :param now: seconds, monotonic.
        """
        if not self._auto:
            return False
        cached = use.cached
        if cached is None:
            # An answer that was cut short, or an engine that never reports them.
            self._unreported += 1
            self._hopeless |= not self._finds and self._unreported >= _FEWEST_CALLS
            return False
        self._finds |= cached > 0
        self._hopeless &= not self._finds
        if self._since is None:
            self._since = now
        since, limit = self._since, self.advised or 0
        self._steady &= open_episodes >= _USED * limit and use.version == self._version
        self._version = use.version
        self._calls += 1
        self._tokens += use.length
        self._open += open_episodes
        self._seen = min(_CALLS_OF_MEAN, self._seen + 1)
        self._mean_length += (use.length - self._mean_length) / self._seen
        if use.expected is None:
            # New weights emptied the cache, which slows all episodes down for a while.
            self._steady = False
        else:
            self._expected += use.expected
            self._found += min(cached, use.expected)
        if self._settling and open_episodes > limit:
            self._look_from(now)
            return False
        if self._calls < max(_FEWEST_CALLS, open_episodes):
            return False
        self._look(now, since)
        return True

    def _look_from(self, now: float) -> None:
        """Start to count for the next look."""
        self._since = now
        self._steady = True
        self._calls, self._tokens, self._open, self._expected, self._found = 0, 0, 0, 0, 0

    def _look(self, now: float, since: float) -> None:
        """Adapt the limit to the calls since the last look."""
        missed = self.missed = 1 - self._found / self._expected if self._expected else 0.0
        open_episodes = self._open / self._calls
        tokens = open_episodes * self._tokens / self._calls
        # Young episodes are short, so the rates of the first ones say nothing.
        grown = self._fits is not None and self._ended_ever >= open_episodes
        if grown and self._steady and not self._settling:
            self._learn(open_episodes, self._calls / max(1e-9, now - since))
        known = self._expected > 0
        self._look_from(now)
        if self._settling:
            # Each episode may have missed what was taken from it before the cut.
            self._settling = False
            return
        if self._hopeless:
            return
        if self._fits is None:
            if not (known and missed > self._target):
                self._double(open_episodes)
                return
            self._fits = tokens
        self._target = _TARGET + _TARGET_MEMORY * (self._target - _TARGET)
        if missed > self._target:
            self._cut(missed)
        elif self._bound and known and open_episodes >= _USED * (self.limit or 0):
            self._fits *= 1 + _RISE_PER_MISS * (self._target - missed) * self._ended / open_episodes
            self._bound, self._ended = False, 0

    def _double(self, open_episodes: float) -> None:
        """Advise more episodes, once those that were advised have grown and nothing was missed."""
        if open_episodes >= _USED * self._first and self._ended >= self._first:
            self._first *= 2
            self._ended = 0

    def _cut(self, missed: float) -> None:
        """Lower the limit, or accept the misses."""
        assert self._fits is not None
        if not self._finds:
            self._search(self._fits)
            return
        if self._gain() > _WORTH:
            self._target = missed + _MORE_MISSES
            return
        cut = min(_CUT_PER_MISS * (missed - self._target), _MOST_CUT)
        self._fits = max(self._fits * (1 - cut), _FEWEST * self._mean_length)
        if cut > _LARGE_CUT:
            self._settling, self._bound, self._ended = True, False, 0

    def _search(self, fits: float) -> None:
        """Look for a limit at which anything is found in the cache; give up if there is none."""
        if (self.limit or 0) <= _FEWEST:
            self._hopeless, self._fits = True, None
            return
        self._fits = max(fits / 2, _FEWEST * self._mean_length)
        self._settling, self._bound, self._ended = True, False, 0

    def _learn(self, open_episodes: float, rate: float) -> None:
        """Record how many calls per second some open episodes made."""
        x, y = math.log(open_episodes), math.log(rate)
        new = (1.0, x, y, x * x, x * y)
        old = self._sums
        self._sums = (
            _MEMORY * old[0] + new[0],
            _MEMORY * old[1] + new[1],
            _MEMORY * old[2] + new[2],
            _MEMORY * old[3] + new[3],
            _MEMORY * old[4] + new[4],
        )

    def _gain(self) -> float:
        """Return the relative gain in calls per relative gain in episodes; 0 if unknown."""
        looks, x, y, xx, xy = self._sums
        if looks < _FEWEST_LOOKS:
            return 0.0
        variance = xx / looks - (x / looks) ** 2
        if variance < _LEAST_SPREAD**2:
            return 0.0
        return (xy / looks - x * y / looks**2) / variance
