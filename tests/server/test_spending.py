"""What a run spends: a real server whose clients report, and which is killed or restarted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentjet.client import AsyncSwarmClient
from ajet_cli.charts import PHASES
from ajet_core.errors import RequestError, StateError
from ajet_core.protocol import RunConfig, ServerState
from ajet_testing.faults import HoldGate
from ajet_testing.servers import CLIENT, CONTROL, TOKENS, Running, ServerFactory, error_of
from tests.support.runs import loop_of, status, until_state
from tests.support.served_processes import call, serving, start_run

COSTS: dict[str, Any] = {
    "devices": {"h100": 2},
    "device_hour": {"h100": 3.0},
    "models": {"judge-1": {"input": 2.0, "output": 10.0}},
}
AN_ID = "0" * 32


async def spending(server: Running) -> dict[str, Any]:
    found: dict[str, Any] = (await status(server))["spending"]
    return found


async def report(server: Running, **body: Any) -> dict[str, Any]:
    answer = await server.http.post("/v1/spending", headers=CLIENT, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def client_of(server: Running, token: str = TOKENS.control) -> AsyncSwarmClient:
    return AsyncSwarmClient(server.url, token, retries=1)


async def test_a_report_is_counted_once_also_after_a_restart(servers: ServerFactory) -> None:
    async with servers.running(costs=COSTS) as server:
        assert (await server.put_run()).status_code == 200
        body = {"report_id": AN_ID, "usd": 0.25, "source": "search"}
        assert await report(server, **body) == {"counted": True}
        assert await report(server, **body) == {"counted": False}
        tokens = {"model": "judge-1", "input_tokens": 1_000_000, "output_tokens": 100_000}
        await report(server, report_id="1" * 32, source="judge", **tokens)
    async with servers.running(costs=COSTS) as server:
        assert await report(server, **body) == {"counted": False}
        shown = await spending(server)
    assert [(use["source"], use["model"], use["usd"]) for use in shown["paid"]] == [
        ("judge", "judge-1", 3.0),
        ("search", "", 0.25),
    ]
    assert shown["usd"] == pytest.approx(3.25, abs=0.01)


async def test_the_same_id_with_other_values_is_refused(server: Running) -> None:
    await report(server, report_id=AN_ID, usd=1.0)
    body = {"report_id": AN_ID, "usd": 2.0}
    answer = await server.http.post("/v1/spending", headers=CLIENT, json=body)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "report_id"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"usd": -1.0},
        {"usd": "1"},
        {"usd": 1.0, "model": "m", "input_tokens": 5},
        {"input_tokens": 5},
        {"model": "m", "input_tokens": -1},
    ],
)
async def test_what_is_neither_an_amount_nor_tokens_is_refused(
    server: Running, body: dict[str, Any]
) -> None:
    answer = await server.http.post(
        "/v1/spending", headers=CLIENT, json={"report_id": AN_ID, **body}
    )
    assert answer.status_code == 400


async def test_a_model_without_a_price_is_shown_as_such(servers: ServerFactory) -> None:
    async with servers.running(costs=COSTS) as server:
        await server.roll(budget={"usd": 100.0})
        await report(server, report_id=AN_ID, model="other", input_tokens=7)
        shown = await status(server)
        (use,) = shown["spending"]["paid"]
        assert (use["usd"], use["input_tokens"]) == (None, 7)
        (finding,) = [f for f in shown["findings"] if f["code"] == "no_price"]
        assert "'other'" in finding["message"]


async def test_clients_report_and_do_not_see_what_others_paid(server: Running) -> None:
    await server.roll()
    async with client_of(server, TOKENS.client) as client:
        episode = await client.begin_episode("a")
        assert await client.report_spending(0.5, source="tool", episode=episode)
        assert await client.report_spending(model="judge-1", input_tokens=3)
        assert (await client.status()).spending is None
        with pytest.raises(RequestError, match="usd"):
            await client.report_spending()
    assert len((await spending(server))["paid"]) == 2


async def test_episodes_of_others_take_no_reports(server: Running) -> None:
    body = {"report_id": AN_ID, "usd": 1.0, "episode_id": "0" * 24}
    answer = await server.http.post("/v1/spending", headers=CLIENT, json=body)
    assert answer.status_code == 404


async def test_time_is_counted_by_phase_and_goes_on_after_a_restart(
    servers: ServerFactory,
) -> None:
    async with servers.running(costs=COSTS) as server:
        await server.roll(steps=4)
        await server.batch()
        before = await spending(server)
    assert {"boot", "idle", "rollout", "train", "sync"} <= set(before["seconds"])
    assert before["device_hours"]["rollout"] == pytest.approx(
        2 * before["seconds"]["rollout"] / 3600
    )
    total = 3.0 * sum(before["device_hours"].values())
    assert before["device_usd"] == pytest.approx(total)
    async with servers.running(costs=COSTS) as server:
        await until_state(server, ServerState.ROLLING)
        after = await spending(server)
        for phase, seconds in before["seconds"].items():
            assert after["seconds"][phase] >= seconds
        await server.batch()
        await server.batch()
        left = (await spending(server))["time_left"]
    assert left["steps"] == 1
    assert left["seconds"] >= 0.0


class SetClock:
    """The clock of a server's meter, which passes only when a test says so."""

    def __init__(self, server: Running) -> None:
        meter = server.service.parts.spending
        self.now = meter._since = 0.0
        meter._clock = lambda: self.now


async def test_time_without_an_open_episode_is_idle_and_the_phases_add_up(
    server: Running,
) -> None:
    clock = SetClock(server)
    await server.roll()
    clock.now += 8.0
    first = await server.claim("a")
    clock.now += 4.0
    second = await server.claim("a")
    await server.end(first, 0.0)
    clock.now += 2.0
    # The program of an open episode works, although no call is made.
    await server.end(second, 1.0)
    clock.now += 1.0
    assert (await spending(server))["seconds"] == {"idle": 9.0, "rollout": 6.0}
    assert (await server.http.post("/v1/run/pause", headers=CONTROL)).status_code == 200
    clock.now += 100.0
    assert (await server.http.post("/v1/run/resume", headers=CONTROL)).status_code == 200
    third, fourth = [await server.claim("b") for _ in range(2)]
    clock.now += 16.0
    await server.end(third, 1.0)
    await server.end(fourth, 0.0)
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    shown = await status(server)
    assert shown["spending"]["seconds"] == {"idle": 9.0, "paused": 100.0, "rollout": 22.0}
    assert sum(shown["spending"]["seconds"].values()) == clock.now
    metrics = shown["last_step"]["metrics"]
    assert metrics["idle_seconds"] == 9.0
    assert metrics["rollout_seconds"] == 22.0
    assert metrics["step_seconds"] == 31.0


async def test_training_with_no_open_episode_overlaps_with_nothing(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock(server)
    mode = {"mode": "async", "max_staleness": 2, "max_mean_staleness": 2}
    with HoldGate(server.run_dir, "trainer") as gate:
        await server.roll(rollout=mode, trainer={"hangs_at": 1})
        loop, training = loop_of(server), asyncio.Event()
        note = loop._train_step

        def noted(step: int | None) -> None:
            note(step)
            training.set()

        monkeypatch.setattr(loop, "_train_step", noted)
        for task in "aabb":
            await server.episode(task, 0.0)
        await training.wait()
        clock.now += 4.0
        grant = await server.claim("c")
        clock.now += 2.0
        await server.end(grant, 1.0)
        clock.now += 1.0
        assert (await spending(server))["seconds"] == {"overlap": 2.0, "train": 5.0}
        gate.release()


async def test_the_parts_of_a_step_add_up_to_its_duration(server: Running) -> None:
    await server.roll()
    await server.batch()
    metrics = (await status(server))["last_step"]["metrics"]
    assert metrics["step_seconds"] == pytest.approx(sum(metrics[name] for name in PHASES))
    assert all(metrics[name] > 0.0 for name in PHASES)


async def test_a_spent_budget_pauses_after_the_step_and_names_the_way_out(
    server: Running,
) -> None:
    await server.roll(budget={"usd": 1.0})
    await report(server, report_id=AN_ID, usd=0.9)
    await loop_of(server).keep_budget()
    assert (await status(server))["paused"] is None
    rolling = [await server.claim(task) for task in "aabb"]
    await report(server, report_id="1" * 32, usd=0.2)
    for number, grant in enumerate(rolling):
        assert (await server.chat(grant)).status_code == 200
        assert (await server.end(grant, float(number % 2))).status_code == 200
    await until_state(server, ServerState.PAUSED)
    shown = await status(server)
    assert shown["step"] == 1
    assert "1.10 of 1 USD" in shown["paused"]
    assert "ajet budget" in shown["paused"]
    assert "budget_spent" in [finding["code"] for finding in shown["findings"]]
    async with client_of(server) as client:
        with pytest.raises(StateError, match=r"1\.10 of 1 USD"):
            await client.resume_engine()
        await client.set_budget(usd=5.0)
        await client.resume_engine()
    await until_state(server, ServerState.ROLLING)
    await server.batch()
    assert (await status(server))["step"] == 2


async def test_a_budget_that_is_spent_while_rolling_out_pauses_then(server: Running) -> None:
    await server.roll(budget={"usd": 1.0})
    grant = await server.claim()
    await report(server, report_id=AN_ID, usd=1.0)
    await until_state(server, ServerState.PAUSED)
    # The open episode can end.
    assert (await server.chat(grant)).status_code == 200
    assert (await server.end(grant, 1.0)).status_code == 200


async def test_a_raised_budget_is_kept_by_a_restart_and_the_run_keeps_its_configuration(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await server.roll(budget={"usd": 1.0, "hours": 9.0})
        async with client_of(server) as client:
            await client.set_budget(usd=2.0)
        await report(server, report_id=AN_ID, usd=1.5)
        await loop_of(server).keep_budget()
        assert (await status(server))["paused"] is None
        # A client that starts again sends what it sent before.
        assert (await server.put_run(budget={"usd": 1.0, "hours": 9.0})).status_code == 200
        refused = await server.put_run(budget={"usd": 7.0})
        assert "ajet budget" in error_of(refused)["message"]
    async with servers.running() as server:
        assert (await spending(server))["budget"] == {"usd": 2.0, "hours": None}


async def test_a_run_with_a_spent_budget_does_not_start(server: Running) -> None:
    await report(server, report_id=AN_ID, usd=3.0)
    assert (await server.put_run(budget={"usd": 2.0})).status_code == 200
    answer = await server.http.post("/v1/run/start", headers=CONTROL, json={})
    assert answer.status_code == 409
    assert "3.00 of 2 USD" in error_of(answer)["message"]


async def test_the_last_step_ends_the_run_although_it_spends_the_budget(server: Running) -> None:
    await server.roll(budget={"usd": 1.0}, steps=1)
    rolling = [await server.claim(task) for task in "aabb"]
    for number, grant in enumerate(rolling[:3]):
        await server.end(grant, float(number % 2))
    server.service.coordinator.loop.keep_budget = _nothing  # type: ignore[method-assign]
    await report(server, report_id=AN_ID, usd=2.0)
    await server.end(rolling[3], 1.0)
    await until_state(server, ServerState.OFFLINE)
    assert (await status(server))["step"] == 1


async def _nothing() -> None:
    pass


@pytest.mark.parametrize("budget", [{"usd": 0}, {"usd": -1}, {"hours": "many"}, {"euros": 1}])
def test_bad_budgets_are_refused(budget: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"budget\.(usd|hours|euros)"):
        RunConfig.model_validate({"model": {"path": "/m"}, "budget": budget})


@pytest.mark.processes
async def test_a_killed_server_has_counted_every_report_once(
    model_dir: Path, tmp_path: Path
) -> None:
    """Clients repeat what got no answer, before and after the kill."""
    ids = [f"{number:032d}" for number in range(40)]
    bodies = [{"report_id": name, "usd": 0.01 * (n + 1)} for n, name in enumerate(ids)]
    run_dir = tmp_path / "run"
    answered = 0
    async with serving(run_dir, model_dir) as (server, http):
        await start_run(http, model_dir)
        # An open episode: the kill is within a step.
        await call(http, "POST", "/v1/episodes", {"task_id": "a"})

        async def send(body: dict[str, Any]) -> None:
            nonlocal answered
            await call(http, "POST", "/v1/spending", body)
            answered += 1
            if answered == 10:
                server.process.kill()

        await asyncio.gather(*map(send, bodies), return_exceptions=True)
        assert answered >= 10
        await server.process.wait()
    async with serving(run_dir, model_dir) as (_, http):
        for body in [*bodies, *bodies]:
            await call(http, "POST", "/v1/spending", body)
        shown = (await call(http, "GET", "/v1/status"))["spending"]
    assert sum(use["usd"] for use in shown["paid"]) == pytest.approx(8.2, abs=1e-9)
    assert shown["seconds"]["boot"] > 0
