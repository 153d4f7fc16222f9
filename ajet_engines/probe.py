"""Proof of weights by logprobs of a fixed text, for engines that report no checksums."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ajet_core.errors import SealError
from ajet_core.interfaces import SealReport, WeightUpdate

__all__ = ["ProbeWatch", "probe_ids"]

_TOKENS = 64
# Any number that has no factor in common with most vocabulary sizes.
_STRIDE = 2654435761

# Nats. Engines that write logprobs as decimals round them to about this precision.
_LEAST_NOISE = 1e-5
# The number of proofs whose noise is remembered.
_REMEMBERED = 8
# How many times the largest remembered noise still counts as noise, and which share of the
# trainer's change an engine may deviate by.
_NOISES, _PART = 3.0, 0.25
# The initial weights are those of another model if logprobs differ by more than this share of their
# spread.
_UNLIKE = 0.5
# A change counts as a proof if it is at least this many times the noise.
_TELLING = _NOISES / _PART


def probe_ids(vocab_size: int, max_context: int) -> list[int]:
    """Return the token ids of the probe, [T] with T <= 64, always the same.

    They are from the middle of the vocabulary, where no model family has its special tokens.
    """
    low = vocab_size // 8
    span = max(1, vocab_size // 2 - low)
    # Leave room for the token that a server samples after them.
    length = max(2, min(_TOKENS, max_context - 1))
    return [low + number * _STRIDE % span for number in range(length)]


@dataclass(frozen=True, slots=True)
class _Proven:
    """Logprobs [T - 1] of trainer and server for proven weights, or for the initial ones."""

    version: int
    trained: Sequence[float]
    served: Sequence[float]
    proof: bool


class ProbeWatch:
    """Checks one server's logprobs of the probe over successive updates.

    Engine and trainer never agree to the last digit, so the comparison is between the changes of
    their logprobs since the server last proved its weights. A deviation is the median over the
    tokens, which is robust to outliers; noise is the third quartile.
    """

    def __init__(self) -> None:
        self._last: _Proven | None = None
        self._noises: deque[float] = deque(maxlen=_REMEMBERED)

    def check(self, update: WeightUpdate, served: Sequence[float], who: str) -> SealReport:
        """Compare a server's logprobs with the trainer's.

        :param update: an update that has a probe of T tokens.
        :param served: [T - 1] logprobs of the server after loading the update.
        :param who: the server, for messages.
        :return: a report with the proof ``probe``; with ``none`` if the change is too small to be
            distinguished from noise, and for the initial weights, which cannot be compared.
        :raises SealError: the server does not serve the published weights.
        """
        assert update.probe is not None, "the update has no probe"
        trained, version = update.probe.logprobs, update.policy_version
        wrong = f"{who} does not serve the weights of policy version {version}: "
        if len(served) != len(trained) or not all(map(math.isfinite, served)):
            raise SealError(f"{wrong}it did not return {len(trained)} numbers for the probe")
        gap = _less(served, trained)
        last = self._last
        if last is None:
            spread = _size([one - median(trained) for one in trained])
            if _size(gap) > max(_UNLIKE * spread, _LEAST_NOISE):
                raise SealError(
                    f"{wrong}its logprobs of the probe differ from the trainer's by "
                    f"{_size(gap):.2g} nats, so it serves another model"
                )
            self._accept(_Proven(version, trained, served, proof=False), gap)
            return _report(version, proven=False, change=0.0, noise=self._noises[0])
        change, moved = _less(trained, last.trained), _less(served, last.served)
        astray = _less(moved, change)
        size, off = _size(change), _size(astray)
        noise = max(self._noises)
        if off > _NOISES * noise + _PART * size:
            cause = (
                f"it still serves policy version {last.version}"
                if _size(moved) <= _PART * size
                else "it loaded only part of the update, or other weights"
            )
            raise SealError(
                f"{wrong}since policy version {last.version} the trainer's logprobs of the "
                f"probe have changed by {size:.2g} nats, and the engine's change differs "
                f"from that by {off:.2g} nats (noise: {noise:.2g}): {cause}"
            )
        # If the weights have not changed, they are proven if they were before.
        same = trained == last.trained
        proven = last.proof if same else size >= _TELLING * noise
        if proven and not same:
            self._accept(_Proven(version, trained, served, proof=True), astray)
        return _report(version, proven=proven, change=size, noise=noise)

    def _accept(self, proven: _Proven, differences: Sequence[float]) -> None:
        # Learn noise only from proven weights: otherwise a stale server would increase the
        # tolerance.
        self._last = proven
        sizes = sorted(map(abs, differences))
        self._noises.append(max(_LEAST_NOISE, sizes[len(sizes) * 3 // 4]))


def _report(version: int, *, proven: bool, change: float, noise: float) -> SealReport:
    if not proven:
        return SealReport(version, change=change, noise=noise)
    return SealReport(version, "probe", servers=1, change=change, noise=noise)


def _less(left: Sequence[float], right: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(left, right, strict=True)]


def _size(differences: Sequence[float]) -> float:
    return median(map(abs, differences))
