"""The state of a run in a sentence."""

from __future__ import annotations

import pytest

from ajet_core.protocol import (
    BatchProgress,
    ErrorDetail,
    Finding,
    RolloutStatus,
    ServerState,
    ServerStatus,
)
from ajet_server.page.overview import PollPace, sentence

_BATCH = BatchProgress(full_by="tasks", needed=8, ready=3, open_episodes=1, quarantined=0)
_IDLE = ServerStatus(
    state=ServerState.ROLLING,
    run_id="cats",
    model="m",
    policy_version=4,
    step=4,
    batch=_BATCH,
    last_step=None,
    counters={},
    uptime_seconds=1.0,
    error=None,
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {},
            "Run cats is filling the batch of step 5: 3 of 8 tasks are ready and 1 episode open.",
        ),
        (
            {"rollout": RolloutStatus(mode="async", max_staleness=2, training_step=5)},
            "Run cats is training step 5; the next batch has 3 of 8 tasks.",
        ),
        (
            {"findings": [Finding(code="no_client", message="", seconds=65.0, stuck=True)]},
            (
                "Run cats waits for a client since 1970-01-01 00:58 UTC; "
                "the batch of step 5 has 3 of 8 tasks."
            ),
        ),
        ({"batch": None, "step": 1}, "Run cats has been trained for 1 step."),
        (
            {
                "findings": [
                    Finding(code="waiting_for_episodes", message="", seconds=65.0, stuck=True)
                ]
            },
            (
                "Run cats waits for model calls of 1 open episode since 1970-01-01 00:58 UTC; "
                "the batch of step 5 has 3 of 8 tasks."
            ),
        ),
        ({"paused": "no space"}, "The run is paused: no space"),
        (
            {
                "paused": "batch 5 was not trained: rewards fell; it grew. Run `ajet resume`",
                "findings": [
                    Finding(code="paused", message="", seconds=65.0, stuck=True),
                    Finding(
                        code="length", message="it grew", seconds=1.0, stuck=False, since_step=4
                    ),
                    Finding(
                        code="reward_drop",
                        message="rewards fell",
                        seconds=1.0,
                        stuck=False,
                        since_step=4,
                    ),
                ],
            },
            (
                "The run is paused since 1970-01-01 00:58 UTC: batch 5 was not trained: "
                "reward drop; length. Run `ajet resume`"
            ),
        ),
        (
            {"error": ErrorDetail(type="trainer_error", message="the trainer died")},
            "The run failed: the trainer died",
        ),
        ({"state": ServerState.BOOTING}, "Run cats is starting its engine and trainer."),
        ({"state": ServerState.OFFLINE, "run_id": None, "step": 0}, "The server is not active."),
        (
            {"state": ServerState.OFFLINE},
            "Run cats is not active. It was trained for 4 steps.",
        ),
    ],
)
def test_the_state_is_a_sentence(changes: dict[str, object], expected: str) -> None:
    assert sentence(_IDLE.model_copy(update=changes), now=3600.0) == expected


@pytest.mark.parametrize(("pages", "expected"), [(1, 5.0), (100, 5.0), (200, 10.0), (2000, 100.0)])
def test_many_pages_ask_less_often(pages: int, expected: float) -> None:
    """Whatever they asked before, together they come to 20 requests a second."""
    now = [0.0]
    pace = PollPace(lambda: now[0])
    for _ in range(40):
        # Each page asks once in the time that the server says.
        for _ in range(pages):
            now[0] += pace.seconds / pages
            pace.note()
    assert pace.seconds == pytest.approx(expected, rel=0.05)
