"""The learning rate of each step."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from ajet_core.protocol import AlgorithmConfig
from ajet_torch.schedules import learning_rate

RATE = 8e-4


def rates(steps: int, **settings: Any) -> list[float]:
    algorithm = AlgorithmConfig(learning_rate=RATE, **settings)
    return [learning_rate(algorithm, done) / RATE for done in range(steps)]


def test_a_constant_rate_begins_at_once_or_after_its_warm_up() -> None:
    assert rates(3) == [1.0, 1.0, 1.0]
    assert rates(6, warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_a_linear_schedule_falls_evenly_and_never_reaches_nothing() -> None:
    found = rates(8, schedule="linear", schedule_steps=6, warmup_steps=2)
    assert found == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])


def test_a_falling_rate_begins_at_its_full_height_without_a_warm_up() -> None:
    assert rates(5, schedule="linear", schedule_steps=4) == pytest.approx(
        [1.0, 0.75, 0.5, 0.25, 0.25]
    )


def test_a_cosine_schedule_falls_along_a_cosine() -> None:
    found = rates(6, schedule="cosine", schedule_steps=5, warmup_steps=1)
    along = [(1 + math.cos(math.pi * k / 5)) / 2 for k in range(5)]
    assert found == pytest.approx([*along, along[-1]])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"schedule": "cosine"}, "linear and cosine schedules need it"),
        ({"schedule_steps": 10}, "linear and cosine schedules need it"),
        (
            {"schedule": "linear", "schedule_steps": 10, "warmup_steps": 10},
            "schedule_steps must be greater than warmup_steps",
        ),
        ({"schedule": "stairs"}, "schedule"),
        ({"schedule": "linear", "schedule_steps": 0}, "schedule_steps"),
    ],
)
def test_schedules_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        AlgorithmConfig(**settings)
