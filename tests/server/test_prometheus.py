"""What a scrape sees."""

from __future__ import annotations

import json
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from ajet_core.protocol import ServerStatus
from ajet_server.observe.prometheus import exposition
from ajet_testing.servers import CLIENT, CONTROL, Running

GOLDEN = Path(__file__).parents[1] / "protocol" / "golden" / "ServerStatus.json"

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(**changes: object) -> Samples:
    wire = {**json.loads(GOLDEN.read_text(encoding="utf-8")), **changes}
    return parsed(exposition(ServerStatus.model_validate(wire)).decode())


def test_everything_a_status_says_in_numbers_is_there() -> None:
    found = scraped()
    assert found["ajet_state", (("state", "ROLLING"),)] == 1
    assert found["ajet_state", (("state", "PAUSED"),)] == 0
    assert found["ajet_mixture_slots", (("tag", "code"),)] == 5
    assert found["ajet_mixture_blocked", (("tag", "code"),)] == 1
    assert found["ajet_max_staleness", ()] == 4
    joint = scraped(counters={"joint_ended": 3, "joint_aborted": 2, "prepared_episodes": 1})
    assert joint["ajet_joint_ended_total", ()] == 3
    assert joint["ajet_joint_aborted_total", ()] == 2
    assert joint["ajet_prepared_episodes", ()] == 1
    held_out = (("client", "client"), ("k", "4"), ("tag", "held-out"))
    assert found["ajet_evaluation_pass_at", held_out] == 0.75


def test_time_and_money_are_there() -> None:
    found = scraped()
    assert found["ajet_phase_seconds_total", (("phase", "rollout"),)] == 3600
    assert found["ajet_device_hours_total", (("phase", "rollout"),)] == 2
    assert found["ajet_cost_usd_total", ()] == 6.53
    assert found["ajet_budget", (("unit", "hours"),)] == 12
    assert found["ajet_seconds_left", (("bound", "high"),)] == 10000
    judge = (("model", "gpt-5-mini"), ("source", "judge"))
    assert found["ajet_paid_usd_total", judge] == 0.5
    assert found["ajet_paid_tokens_total", (("kind", "output"), *judge)] == 125000
    without_price = (("model", "other"), ("source", "judge"))
    assert ("ajet_paid_usd_total", without_price) not in found


def test_names_that_clients_give_cannot_break_the_format() -> None:
    tag = 'a"b\\c\nd'
    progress = {"ratio": 1.0, "slots": 8, "ready": 0, "under_way": 0, "blocked": False}
    found = scraped(mixture={tag: progress})
    assert found["ajet_mixture_slots", (("tag", tag.replace("\n", "?")),)] == 8


async def test_a_scrape_of_a_rolling_server(server: Running) -> None:
    await server.roll()
    await server.batch()
    answer = await server.http.get("/metrics", headers=CONTROL)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = parsed(answer.text)
    assert found["ajet_step", ()] == 1
    assert found["ajet_episodes_total", ()] == 4
    assert found["ajet_last_step", (("metric", "reward_mean"),)] == 0.5


async def test_what_the_engine_measures_is_there_for_who_may_see_all(server: Running) -> None:
    assert "scripted_requests" not in (await server.http.get("/metrics", headers=CONTROL)).text
    await server.roll()
    await server.batch()
    found = parsed((await server.http.get("/metrics", headers=CONTROL)).text)
    assert found["scripted_requests_total", ()] == found["ajet_calls_total", ()]
    assert "scripted_requests" not in (await server.http.get("/metrics", headers=CLIENT)).text


async def test_a_scrape_needs_a_token_and_a_client_sees_no_progress_of_others(
    server: Running,
) -> None:
    assert (await server.http.get("/metrics")).status_code == 401
    await server.roll(mixture={"ratios": {"x": 1.0}})
    assert "ajet_mixture" in (await server.http.get("/metrics", headers=CONTROL)).text
    assert "ajet_mixture" not in (await server.http.get("/metrics", headers=CLIENT)).text
