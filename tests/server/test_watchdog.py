"""What keeps a server from going on is named."""

from __future__ import annotations

import time
from dataclasses import replace

from ajet_core.protocol import BatchProgress, Finding, Quarantine, ServerState, TagProgress
from ajet_server.observe.events import EventLog
from ajet_server.observe.watchdog import OpenView, ServerView, Watchdog, by_gravity, diagnose
from ajet_server.security.throttle import ThrottleMeter

PROGRESS = BatchProgress(full_by="tasks", needed=8, ready=3, open_episodes=0, quarantined=0)
IDLE = ServerView(
    ServerState.ROLLING, in_state=100.0, still=70.0, batch=PROGRESS, episodes_per_task=8
)
EPISODE = OpenView("e1", "t1", "client", idle=65.0, lease_left=20.0, calls=0)


def only(view: ServerView) -> Finding:
    (found,) = diagnose(view, 60.0)
    return found


def test_a_server_at_work_has_no_findings() -> None:
    assert diagnose(replace(IDLE, still=1.0), 60.0) == []
    busy = replace(EPISODE, calls=1)
    assert diagnose(replace(IDLE, open=[busy]), 60.0) == []
    assert diagnose(ServerView(ServerState.OFFLINE, 1e6, 1e6), 60.0) == []
    assert diagnose(ServerView(ServerState.BOOTING, 5.0, 5.0), 60.0) == []


def test_no_client() -> None:
    found = only(IDLE)
    assert (found.code, found.stuck, found.seconds) == ("no_client", True, 70.0)
    assert "3 of 8 tasks; it is trained once clients have rolled out 5 more" in found.message
    early = only(replace(IDLE, still=20.0))
    assert (early.code, early.stuck) == ("no_client", False)


def test_what_makes_training_useless_comes_before_missing_clients() -> None:
    findings = [
        Finding(code=code, message="", seconds=0, stuck=stuck)
        for code, stuck in [
            ("throttled", False),
            ("no_client", True),
            ("zero_signal", False),
            ("slow_state", True),
        ]
    ]
    order = [finding.code for finding in by_gravity(findings)]
    assert order == ["slow_state", "zero_signal", "no_client", "throttled"]


def test_an_agent_that_does_not_come_back_is_named() -> None:
    longer = replace(EPISODE, episode_id="e2", task_id="t2", idle=90.0)
    found = only(replace(IDLE, open=[EPISODE, longer]))
    assert found.code == "waiting_for_episodes"
    assert found.seconds == 65.0
    assert "task 't2' (episode e2 of client client: no model call for 90 s" in found.message
    assert found.message.index("e2") < found.message.index("e1")


def test_an_agent_that_stalls_is_told_from_a_client_that_is_gone() -> None:
    gone = replace(EPISODE, seen_ago=65.0)
    stalled = replace(EPISODE, episode_id="e2", client_id="other", seen_ago=3.0)
    message = only(replace(IDLE, open=[stalled])).message
    assert "no model call for 65 s, the last heartbeat 3 s ago" in message
    assert "The client runs, but its agent has stalled" in message
    message = only(replace(IDLE, open=[gone])).message
    assert "no heartbeat since, its lease ends in 20 s" in message
    assert "The client may be gone" in message
    both = only(replace(IDLE, open=[gone, stalled])).message
    assert (
        "Where heartbeats arrive, the agent has stalled; otherwise the client may be gone" in both
    )


def test_a_client_names_a_silent_task_once() -> None:
    episodes = [replace(EPISODE, episode_id=f"e{i}", idle=65.0 + i) for i in range(8)]
    message = only(replace(IDLE, open=episodes)).message
    assert message.startswith(
        "waiting for task 't1' (episode e7 of client client: no model call for 72 s"
    )
    assert " and 7 more. " in message


def test_a_task_that_nobody_goes_on_with_is_named() -> None:
    found = only(replace(IDLE, lacking=[("t7", 5, 0)]))
    assert found.code == "incomplete_tasks"
    assert "'t7' has 5 of 8" in found.message
    assert "3 of 8 complete" in found.message


def test_claims_for_complete_tasks_alone_are_explained() -> None:
    found = only(replace(IDLE, waiting_claims=4, lacking=[("t7", 5, 0)]))
    assert "all 4 waiting claims are for tasks that are complete in this batch" in found.message
    assert "'t7' has 5 of 8" in found.message


def test_a_tag_that_others_wait_for_is_named() -> None:
    slow = TagProgress(ratio=0.5, slots=4, ready=1, under_way=1, blocked=False)
    quick = slow.model_copy(update={"ready": 4, "under_way": 4})
    found = only(replace(IDLE, waiting_claims=4, tags={"slow": slow, "quick": quick}))
    assert found.message.endswith("it still needs 'slow' (1 of 4); 3 of 8 complete")


def test_tasks_whose_rewards_do_not_differ() -> None:
    found = only(replace(IDLE, zero_variance=12, lacking=[("t7", 5, 0)]))
    assert found.code == "no_signal"
    assert "12 tasks are complete" in found.message


def test_an_engine_that_stands_still_comes_before_everything_else() -> None:
    found = only(replace(IDLE, open=[replace(EPISODE, calls=3)], engine_stalled=61.0))
    assert (found.code, found.stuck) == ("engine_stalled", True)
    assert "3 calls wait" in found.message


def test_slow_states_say_what_they_do() -> None:
    found = only(ServerView(ServerState.BOOTING, 75.0, 75.0, activity="the workers load the model"))
    assert (found.code, found.stuck) == ("slow_state", True)
    assert found.message == "BOOTING for 75 s: the workers load the model"


def test_a_long_step_is_told_where_rollouts_that_go_on_have_to_wait_for_it() -> None:
    view = replace(IDLE, training=True, activity="step 3 is being trained", open=[EPISODE])
    assert diagnose(view, 60.0) == []
    found = only(replace(view, waiting_claims=2))
    assert (found.code, found.stuck, found.seconds) == ("slow_state", True, 70.0)
    assert found.message.startswith("step 3 is being trained; 2 claims wait")


def test_a_pause_throttling_and_quarantined_tasks_are_findings() -> None:
    entry = Quarantine(
        client_id="client", group="t1", task_id="t1", aborts=17, reason="ValueError: no"
    )
    view = replace(
        IDLE,
        state=ServerState.PAUSED,
        paused="by hand",
        throttled=(5, "too many"),
        quarantined=[entry] * 4,
    )
    paused, throttled, tasks = diagnose(view, 60.0)
    assert (paused.code, paused.message) == ("paused", "the run is paused: by hand")
    assert (
        "5 requests were rejected with 429 in the last minute. Last reason: too many"
        in throttled.message
    )
    assert "'t1' after 17 failures, last reason: ValueError: no" in tasks.message
    assert "and 1 more" in tasks.message


def test_the_watchdog_tells_each_cause_once() -> None:
    events = EventLog(time.time)
    begun: list[Finding] = []
    dog = Watchdog(events, begun.append)
    stuck = only(IDLE)
    for findings in ([], [stuck], [stuck], [stuck.model_copy(update={"stuck": False})], []):
        dog.look(findings)
    told = [(e.event.data["what"], e.event.data["code"]) for e in events._events]
    assert told == [("begun", "no_client"), ("ended", "no_client")]
    assert begun == [stuck]


def test_refusals_are_forgotten_after_a_minute() -> None:
    now = 0.0
    meter = ThrottleMeter(lambda: now)
    assert meter.recent() == (0, "")
    meter.note("first")
    now = 59.0
    meter.note("second")
    assert meter.recent() == (2, "second")
    now = 61.0
    assert meter.recent() == (1, "second")
    now = 120.0
    assert meter.recent() == (0, "")
