"""Slots of a batch, shared out by the ratios of tags."""

from __future__ import annotations

from math import fsum

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from ajet_core.protocol import MixtureConfig
from ajet_server.admission.mixture import Shares


def test_whole_places_need_no_rounding() -> None:
    shares = Shares({"math": 0.4, "code": 0.3, "terminal": 0.3})
    for _ in range(20):
        assert shares.quotas(10) == {"math": 4, "code": 3, "terminal": 3}
        shares.commit(10)
    assert set(shares.credit.values()) == {0.0}


def test_what_rounding_takes_is_given_back() -> None:
    shares = Shares({"a": 0.5, "b": 0.5})
    got = []
    for _ in range(4):
        got.append(shares.quotas(1)["a"])
        shares.commit(1)
    assert got == [1, 0, 1, 0]


def test_the_places_of_a_tag_that_nobody_rolls_out_go_to_the_others_and_are_not_owed() -> None:
    shares = Shares({"a": 0.5, "b": 0.25, "c": 0.25})
    assert shares.quotas(6, {"a"}) == {"a": 0, "b": 3, "c": 3}
    shares.commit(6, {"a"})
    assert shares.quotas(4) == {"a": 2, "b": 1, "c": 1}
    assert shares.quotas(4, {"a", "b", "c"}) == {"a": 0, "b": 0, "c": 0}


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 40), st.sets(st.integers(0, 5))), min_size=1, max_size=60),
)
def test_no_batch_is_a_whole_place_off_and_no_tag_is_owed_a_whole_one(
    weights: list[int], batches: list[tuple[int, set[int]]]
) -> None:
    assume(sum(weights))
    ratios = {str(i): weight / sum(weights) for i, weight in enumerate(weights)}
    shares = Shares(ratios)
    for slots, blocked in batches:
        without = {str(i) for i in blocked}
        left = fsum(ratio for tag, ratio in ratios.items() if tag not in without)
        quotas = shares.quotas(slots, without)
        shares.commit(slots, without)
        assert sum(quotas.values()) == (slots if left else 0)
        for tag, ratio in ratios.items():
            wanted = slots * ratio / left if left and tag not in without else 0.0
            assert abs(quotas[tag] - wanted) < 1
    assert abs(fsum(shares.credit.values())) < 1e-5


@given(
    st.lists(st.integers(1, 50), min_size=2, max_size=6), st.integers(1, 20), st.integers(1, 200)
)
def test_over_many_batches_the_sums_follow_the_ratios(
    weights: list[int], slots: int, batches: int
) -> None:
    ratios = {str(i): weight / sum(weights) for i, weight in enumerate(weights)}
    shares, total = Shares(ratios), dict.fromkeys(ratios, 0)
    for _ in range(batches):
        for tag, quota in shares.quotas(slots).items():
            total[tag] += quota
        shares.commit(slots)
    for tag, ratio in ratios.items():
        assert abs(total[tag] - ratio * slots * batches) < 1 + 1e-4


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"ratios": {"a": 0.5, "b": 0.4}}, "ratios must sum to 1; 0.5 \\+ 0.4 is 0.9"),
        ({"ratios": {}}, "at least 1"),
        ({"ratios": {"a": 1.5, "b": -0.5}}, "less than or equal to 1"),
        ({"ratios": {"": 1.0}}, "at least 1 character"),
        (
            {"ratios": {"a": 1}, "schedule": [{"from_step": 3, "ratios": {"a": 0.5}}]},
            "schedule from step 3: ratios must sum to 1",
        ),
        (
            {
                "ratios": {"a": 1},
                "schedule": [{"from_step": s, "ratios": {"a": 1}} for s in (3, 3)],
            },
            "must increase",
        ),
    ],
)
def test_ratios_that_make_no_whole_are_refused(fields: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        MixtureConfig.model_validate(fields)


def test_a_schedule_says_which_ratios_a_step_has() -> None:
    mixture = MixtureConfig.model_validate(
        {
            "ratios": {"a": 1},
            "schedule": [
                {"from_step": 5, "ratios": {"a": 0.5, "b": 0.5}},
                {"from_step": 9, "ratios": {"c": 1}},
            ],
        }
    )
    assert [mixture.at(step) for step in (1, 4, 5, 8, 9, 99)] == [
        {"a": 1},
        {"a": 1},
        {"a": 0.5, "b": 0.5},
        {"a": 0.5, "b": 0.5},
        {"c": 1},
        {"c": 1},
    ]
    assert mixture.tags == {"a", "b", "c"}
