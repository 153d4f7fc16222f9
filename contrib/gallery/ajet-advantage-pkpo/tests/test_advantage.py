"""The estimator passes the suite of agentjet, and computes what the paper says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from math import comb, isclose

import pytest
from ajet_pkpo.advantage import PkpoEstimator
from ajet_pkpo.formulas import transformed, weights
from ajet_pkpo.settings import Baseline, PkpoEstimatorSettings
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.interfaces import AdvantageEstimator
from ajet_core.protocol import AlgorithmConfig
from ajet_testing.suites.advantage_suite import AdvantageSuite, batch_of


def make(k: int = 4, baseline: Baseline = "loo-1") -> PkpoEstimator:
    return PkpoEstimator(PkpoEstimatorSettings(k=k, baseline=baseline), AlgorithmConfig())


class TestPkpoEstimator(AdvantageSuite):
    def make_estimator(self) -> AdvantageEstimator:
        return make()


class TestLoo(AdvantageSuite):
    def make_estimator(self) -> AdvantageEstimator:
        return make(baseline="loo")


class TestNoBaseline(AdvantageSuite):
    # Of two episodes, the best of two attempts is the same.
    separates = False

    def make_estimator(self) -> AdvantageEstimator:
        return make(baseline="none")


class TestOneAttempt(AdvantageSuite):
    def make_estimator(self) -> AdvantageEstimator:
        return make(k=1)


# The paper's formulas, transcribed: sums over subsets, without its shortcuts.


def big_s(g: Sequence[float], i: int, k: int, members: Sequence[int]) -> float:
    """S(i, k, members): equations (27) and (28)."""
    subsets = [subset for subset in combinations(members, k) if i in subset]
    return sum(max(g[j] for j in subset) for subset in subsets) / comb(len(members), k)


def paper_none(g: Sequence[float], k: int) -> list[float]:
    return [big_s(g, i, k, range(len(g))) for i in range(len(g))]


def paper_loo(g: Sequence[float], k: int) -> list[float]:
    """Equation (29)."""
    n = len(g)
    result = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        baseline = sum(big_s(g, j, k, others) for j in others) / (n - 1)
        result.append(big_s(g, i, k, range(n)) - baseline)
    return result


def paper_loo_minus_one(g: Sequence[float], k: int) -> list[float]:
    """Equation (33)."""
    n = len(g)
    return [
        sum(
            max(g[j] for j in subset) - max(g[b] for b in subset if b != i)
            for subset in combinations(range(n), k)
            if i in subset
        )
        / comb(n, k)
        for i in range(n)
    ]


def paper_binary(f: Sequence[float], k: int) -> list[float]:
    """Equation (8), with rho of equation (3), for rewards of 0 and 1."""
    n, c = len(f), round(sum(f))
    missed = 1 - comb(n - 1 - c, k - 1) / comb(n - 1, k - 1) if c < n else 0.0
    return [k / n if correct else k / n * missed for correct in f]


PAPER: dict[str, Callable[[Sequence[float], int], list[float]]] = {
    "none": paper_none,
    "loo": paper_loo,
    "loo-1": paper_loo_minus_one,
}


def close(found: Sequence[float], expected: Sequence[float]) -> bool:
    scale = max(1.0, *map(abs, expected))
    return all(
        isclose(a, b, rel_tol=1e-9, abs_tol=1e-9 * scale)
        for a, b in zip(found, expected, strict=True)
    )


rewards = st.floats(-100, 100) | st.sampled_from([0.0, 0.5, 1.0])


@st.composite
def attempts(draw: st.DrawFn, least: int, more: int = 0) -> tuple[list[float], int]:
    """Draw rewards and k, with `more` rewards than k at least."""
    k = draw(st.integers(least, 6))
    return draw(st.lists(rewards, min_size=k + more, max_size=8 + more)), k


@given(attempts(1))
def test_the_weights_are_those_of_the_paper(drawn: tuple[list[float], int]) -> None:
    g, k = drawn
    assert close(weights(g, k), paper_none(g, k))


@given(attempts(1, 1))
def test_the_baseline_loo_is_equation_29(drawn: tuple[list[float], int]) -> None:
    g, k = drawn
    assert close(transformed(g, k, "loo"), paper_loo(g, k))


@given(attempts(2))
def test_the_baseline_loo_1_is_equation_33(drawn: tuple[list[float], int]) -> None:
    g, k = drawn
    assert close(transformed(g, k, "loo-1"), paper_loo_minus_one(g, k))


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=9), st.data())
def test_binary_rewards_are_those_of_equation_8(f: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(f)))
    assert close(weights(f, k), paper_binary(f, k))


def one_attempt(g: list[float]) -> list[float]:
    """Equation (26) over n."""
    n = len(g)
    return [(x - sum(g[:i] + g[i + 1 :]) / (n - 1)) / n for i, x in enumerate(g)]


@given(st.lists(rewards, min_size=2, max_size=9))
def test_one_attempt_is_rloo(g: list[float]) -> None:
    """Equation (26), and section 5.2: k = 1 leads to no transformation of the rewards."""
    n = len(g)
    expected = [n * value for value in one_attempt(g)]
    (episodes, calls) = batch_of(g, [1] * n)
    assert close([a for (a,) in make(k=1).estimate(episodes, calls)], expected)


@given(st.data(), st.integers(1, 5), st.sampled_from(["none", "loo", "loo-1"]))
def test_a_batch_is_estimated_task_by_task(data: st.DataObject, k: int, baseline: Baseline) -> None:
    """Whole batches against the paper, in the shape and the scale that trainers get."""
    g = data.draw(st.lists(rewards, min_size=1, max_size=7))
    turns = data.draw(st.lists(st.integers(0, 3), min_size=len(g), max_size=len(g)))
    found = make(k, baseline).estimate(*batch_of(g, turns))
    n = len(g)
    allowed = min(k, n - 1 if baseline == "loo" else n)
    if (n == 1 and baseline != "none") or allowed == 0:
        expected = [0.0] * n
    elif allowed == 1 and baseline == "loo-1":
        expected = one_attempt(g)
    else:
        expected = PAPER[baseline](g, allowed)
    assert [len(row) for row in found] == turns
    for row, value in zip(found, expected, strict=True):
        assert all(close([advantage], [n * value]) for advantage in row)


def test_it_rewards_what_adds_to_the_best() -> None:
    """With two good attempts of four, the best of four is the same whatever one of them does."""
    (episodes, calls) = batch_of([1.0, 1.0, 0.0, 0.0], [1, 1, 1, 1])
    assert make(4).estimate(episodes, calls) == [[0.0]] * 4
    (episodes, calls) = batch_of([1.0, 0.0, 0.0, 0.0], [1, 1, 1, 1])
    assert make(4).estimate(episodes, calls) == [[4.0], [0.0], [0.0], [0.0]]


@given(st.lists(st.tuples(rewards, st.sampled_from("abc")), min_size=1, max_size=12))
def test_tasks_do_not_influence_each_other(drawn: list[tuple[float, str]]) -> None:
    episodes, calls = batch_of([reward for reward, _ in drawn], [1] * len(drawn))
    episodes = [replace(e, group=g) for e, (_, g) in zip(episodes, drawn, strict=True)]
    found = make(3).estimate(episodes, calls)
    for group in "abc":
        places = [i for i, episode in enumerate(episodes) if episode.group == group]
        alone = make(3).estimate([episodes[i] for i in places], [calls[i] for i in places])
        assert [found[i] for i in places] == alone


def test_too_few_rewards_are_refused() -> None:
    for baseline, k in (("loo", 2), ("loo-1", 3), ("none", 3)):
        with pytest.raises(ValueError, match="needs more"):
            transformed([1.0, 2.0], k, baseline)


def test_k_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="k"):
        PkpoEstimatorSettings(k=0)
