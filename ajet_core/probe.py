"""The proof of weights by logprobs, for engines that report no checksums: a fixed text, scored by trainer and engine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ajet_core.errors import SealError
from ajet_core.interfaces import SealReport, WeightUpdate

_TOKENS = 64
# Any number without a factor in common with most vocabularies.
_STRIDE = 2654435761

# Nats. Engines that write logprobs as decimals round them about here.
_LEAST_NOISE = 1e-5
# Proofs whose noise is remembered.
_REMEMBERED = 8
# How much more than the noise so far may still be noise, and how much of the trainer's change an engine may be off.
_NOISES, _PART = 3.0, 0.25
# The first weights are of another model if logprobs differ by so much of what they differ by among each other.
_UNLIKE = 0.5
# A change is told from noise if what may be noise is as little of it.
_TELLING = _NOISES / _PART


def probe_ids(vocab_size: int, max_context: int) -> list[int]:
    """The token ids of the probe, [T] with T <= 64, the same each time.

    They are from the middle of the vocabulary, where no family of models keeps its special tokens.
    """
    low = vocab_size // 8
    span = max(1, vocab_size // 2 - low)
    # A server samples a token behind them.
    length = max(2, min(_TOKENS, max_context - 1))
    return [low + number * _STRIDE % span for number in range(length)]


@dataclass(frozen=True, slots=True)
class _Proven:
    """What trainer and server said of weights that the server has proven, or of the first ones: [T - 1] logprobs each."""

    version: int
    trained: Sequence[float]
    served: Sequence[float]
    proof: bool


class ProbeWatch:
    """Judges what one server says to the probe, update after update.

    Engine and trainer never agree to the last digit, so what is compared is by how much their logprobs have changed since
    the server last proved its weights. What counts against a server is the median over the tokens, which a few odd ones do
    not move; noise is what three quarters of the tokens stay below.
    """

    def __init__(self) -> None:
        self._last: _Proven | None = None
        self._noises: deque[float] = deque(maxlen=_REMEMBERED)

    def check(self, update: WeightUpdate, served: Sequence[float], who: str) -> SealReport:
        """Compare a server's logprobs with the trainer's.

        :param update: has a probe of T tokens.
        :param served: [T - 1], by the server that has loaded it.
        :param who: the server, for the message.
        :return: with the proof ``probe``, or with ``none`` if the change is too small to be told from noise, and for the
            first weights, which nothing can be compared with.
        :raises SealError: it does not serve what was published.
        """
        assert update.probe is not None, "the update has a probe"
        trained, version = update.probe.logprobs, update.policy_version
        wrong = f"{who} does not serve the weights of policy version {version}: "
        if len(served) != len(trained) or not all(map(math.isfinite, served)):
            raise SealError(f"{wrong}it does not answer the probe with {len(trained)} numbers")
        gap = _less(served, trained)
        last = self._last
        if last is None:
            spread = _size([one - median(trained) for one in trained])
            if _size(gap) > max(_UNLIKE * spread, _LEAST_NOISE):
                raise SealError(
                    f"{wrong}its logprobs of the probe are {_size(gap):.2g} nats from the trainer's, as those of another "
                    "model"
                )
            self._accept(_Proven(version, trained, served, proof=False), gap)
            return _report(version, proven=False, change=0.0, noise=self._noises[0])
        change, moved = _less(trained, last.trained), _less(served, last.served)
        astray = _less(moved, change)
        size, off = _size(change), _size(astray)
        noise = max(self._noises)
        if off > _NOISES * noise + _PART * size:
            found = (
                f"they are as they were at policy version {last.version}"
                if _size(moved) <= _PART * size
                else "it has loaded a part of the update, or other weights"
            )
            raise SealError(
                f"{wrong}since policy version {last.version} the trainer's logprobs of the probe have changed by "
                f"{size:.2g} nats, and its own are {off:.2g} nats from following, where {noise:.2g} are noise; {found}"
            )
        # The same weights once more are as proven as they were.
        same = trained == last.trained
        proven = last.proof if same else size >= _TELLING * noise
        if proven and not same:
            self._accept(_Proven(version, trained, served, proof=True), astray)
        return _report(version, proven=proven, change=size, noise=noise)

    def _accept(self, proven: _Proven, differences: Sequence[float]) -> None:
        # Nothing is learnt of noise from what is not proven: a stale server would teach that it is right.
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
