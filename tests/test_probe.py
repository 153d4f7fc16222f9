"""Probes of weights: honest servers always pass, and faults show once they exceed the noise."""

from __future__ import annotations

import math
import random

import pytest

from ajet_core.errors import SealError
from ajet_core.interfaces import Probe, SealReport, WeightUpdate
from ajet_engines.probe import ProbeWatch, probe_ids

TOKENS = 64
WHO = "server 0"
STEP = 0.1


def update(version: int, trained: list[float]) -> WeightUpdate:
    return WeightUpdate("c", version, "", probe=Probe([0] * (TOKENS + 1), trained))


class Rollout:
    """A trainer whose weights wander, and a server that computes a little differently.

    :param step: nats by which an update moves a logprob.
    :param noise: nats by which trainer and server differ, drawn anew for each version.
    :param odd: share of the tokens at which they differ by a nat, as mixtures of experts do.
    """

    def __init__(self, step: float, noise: float, odd: float = 0.0, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._step, self._noise, self._odd = step, noise, odd
        self.truth = [self._rng.gauss(-6, 2) for _ in range(TOKENS)]
        self.watch = ProbeWatch()
        self.version = -1

    def train(self) -> WeightUpdate:
        self.version += 1
        if self.version:
            self.truth = [one + self._rng.gauss(0, self._step) for one in self.truth]
        return update(self.version, self.truth)

    def served(self, weights: list[float]) -> list[float]:
        """By a server with these weights; it is the same each time that it is asked."""
        rng = random.Random(repr(weights))
        return [
            one + rng.gauss(0, self._noise) + (rng.random() < self._odd) * rng.gauss(0, 1)
            for one in weights
        ]

    def honest(self) -> SealReport:
        return self.watch.check(self.train(), self.served(self.truth), WHO)


@pytest.mark.slow
@pytest.mark.parametrize("odd", [0.0, 0.2])
@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3, 0.03])
@pytest.mark.parametrize("step", [0.0, 1e-6, 1e-4, 1e-2, 0.1, 1.0])
def test_an_honest_server_is_never_accused(step: float, noise: float, odd: float) -> None:
    rollout = Rollout(step, noise, odd)
    for _ in range(150):
        rollout.honest()


def test_updates_above_the_noise_are_proven_but_for_the_first() -> None:
    rollout = Rollout(step=0.1, noise=1e-3)
    reports = [rollout.honest() for _ in range(20)]
    assert [report.proof for report in reports] == ["none"] + ["probe"] * 19
    assert [report.servers for report in reports] == [0] + [1] * 19
    assert all(report.change >= 12 * report.noise > 0 for report in reports[1:])


def test_updates_below_the_noise_are_proven_once_they_add_up() -> None:
    rollout = Rollout(step=3e-3, noise=1e-3)
    proofs = [rollout.honest().proof for _ in range(400)]
    first = proofs.index("probe")
    assert first > 20
    # And again, counted from there.
    assert proofs[first + 1] == "none"
    assert proofs.count("probe") > 1


def planted(fault: str, rollout: Rollout, old: list[float], rng: random.Random) -> list[float]:
    """What a server says with a fault in its weights, of which the newest are the rollout's."""
    if fault == "stale":
        return rollout.served(old)
    if fault == "swapped":
        return rollout.served([rng.gauss(-6, 2) for _ in old])
    # One half of the tensors moved each logprob as the other half did not.
    pairs = zip(old, rollout.truth, strict=True)
    return rollout.served([(one + new) / 2 + rng.gauss(0, STEP / 2) for one, new in pairs])


@pytest.mark.parametrize("fault", ["stale", "swapped", "half_loaded"])
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_a_fault_in_an_update_above_the_noise_is_found_at_once(fault: str, noise: float) -> None:
    for seed in range(60):
        rollout = Rollout(STEP, noise, seed=seed)
        for _ in range(3):
            rollout.honest()
        old = rollout.truth
        new = rollout.train()
        wrong = planted(fault, rollout, old, random.Random(seed))
        with pytest.raises(SealError, match="does not serve the weights of policy version 3") as e:
            rollout.watch.check(new, wrong, WHO)
        assert ("still serves policy version 2" in e.value.message) is (fault == "stale")
        # A successor that loads it whole is not held responsible.
        assert rollout.watch.check(new, rollout.served(rollout.truth), WHO).proof == "probe"


def test_a_server_that_stays_stale_is_found_when_what_it_missed_adds_up() -> None:
    rollout = Rollout(step=1e-3, noise=1e-3)
    rollout.honest()
    old = rollout.truth
    proofs: list[str] = []

    def train_on() -> None:
        while len(proofs) < 1000:
            proofs.append(rollout.watch.check(rollout.train(), rollout.served(old), WHO).proof)

    with pytest.raises(SealError, match="still serves policy version 0"):
        train_on()
    assert set(proofs) == {"none"}
    assert len(proofs) > 5


def test_the_same_weights_once_more_are_as_proven_as_they_were() -> None:
    rollout = Rollout(step=0.1, noise=1e-3)
    first = update(0, rollout.truth)
    for _ in range(2):
        assert rollout.watch.check(first, rollout.served(rollout.truth), WHO).proof == "none"
    rollout.version = 0
    assert rollout.honest().proof == "probe"
    again = update(2, rollout.truth)
    assert rollout.watch.check(again, rollout.served(rollout.truth), WHO).proof == "probe"


def test_another_model_is_found_at_the_first_update() -> None:
    rollout = Rollout(step=0.1, noise=1e-3)
    other = Rollout(step=0.1, noise=1e-3, seed=1)
    with pytest.raises(SealError, match="so it serves another model"):
        rollout.watch.check(rollout.train(), other.served(other.truth), WHO)


@pytest.mark.parametrize("served", [[], [0.0] * (TOKENS - 1), [math.nan] * TOKENS])
def test_an_answer_that_is_none_is_no_proof(served: list[float]) -> None:
    rollout = Rollout(step=0.1, noise=1e-3)
    rollout.honest()
    with pytest.raises(SealError, match="did not return 64 numbers for the probe"):
        rollout.watch.check(rollout.train(), served, WHO)


@pytest.mark.parametrize("vocabulary", [1, 2, 32, 96, 32_000, 151_936])
def test_a_probe_is_of_ordinary_tokens_and_fits_the_context(vocabulary: int) -> None:
    ids = probe_ids(vocabulary, 4096)
    assert len(ids) == TOKENS
    assert ids == probe_ids(vocabulary, 4096)
    assert all(vocabulary // 8 <= token < max(1, vocabulary // 2) for token in ids)
    assert len(set(ids)) >= min(TOKENS, vocabulary // 4)
    assert len(probe_ids(vocabulary, 16)) == 15
