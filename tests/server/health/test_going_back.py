"""Going back to a checkpoint, on real sockets and worker processes, also through kills."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ajet_core.protocol import ServerState
from ajet_server.store.checkpoints import CheckpointFolder
from ajet_server.store.run_store import RunStore
from ajet_testing.servers import CONTROL, Running, ServerFactory, error_of
from tests.support.runs import events, status, until_state

pytestmark = pytest.mark.processes


async def resume(server: Running, **body: Any) -> None:
    answer = await server.http.post("/v1/run/resume", headers=CONTROL, json=body)
    assert answer.status_code == 200, answer.text


async def pause(server: Running) -> None:
    await server.http.post("/v1/run/pause", headers=CONTROL, json={"reason": "a look"})
    await until_state(server, ServerState.PAUSED)


async def until_back(server: Running, step: int) -> None:
    """The run has gone back, and rolls again."""
    coordinator, board = server.service.coordinator, server.service.board
    await board.wait_until(lambda: coordinator.step == step and board.state is ServerState.ROLLING)


def trained_steps(servers: ServerFactory, step: int) -> int:
    """How many steps the weights of a checkpoint were trained, by the trainer's own count."""
    path = servers.run_dir / "checkpoints" / f"step-{step:06d}" / "scripted_trainer.json"
    return int(json.loads(path.read_text())["steps"])


async def batch_ids(server: Running) -> list[str]:
    return [step.batch_id for step in await server.service.store.steps()]


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_run_goes_back_and_trains_on_new_rollouts(
    servers: ServerFactory, mode: str
) -> None:
    async with servers.running() as server:
        await server.roll(checkpoint_every=1, rollout={"mode": mode})
        for _ in range(3):
            await server.batch()
        before = await batch_ids(server)
        open_, ended = await server.claim("a"), await server.episode("b", 1.0)
        await pause(server)
        await resume(server, from_step=2)
        await until_back(server, 2)
        told = await status(server)
        assert (told["policy_version"], told["paused"], told["last_step"]) == (2, None, None)
        assert await batch_ids(server) == before[:2]
        store = server.service.store
        refused = await store.batches(after_step=0, refused=True)
        assert {b.refused for b in refused} == {"the run went back to step 2"}
        assert before[2] in {b.batch_id for b in refused}
        assert ended["episode_id"] in {e for b in refused for e in b.episode_ids}
        aborted = await store.get_episode(open_["episode_id"])
        assert aborted is not None
        assert (aborted.state, aborted.cause) == ("aborted", "run_stopped")
        assert CheckpointFolder(servers.run_dir).steps() == [1, 2]
        assert {"what": "went_back", "step": 2} in events(server, "run")
        await server.batch()
        assert server.service.coordinator.step == 3
    # Metrics loggers had the third step before, so they get it in another segment.
    logged = json.loads((servers.run_dir / "logged.json").read_text())
    assert (logged["step"], logged["segment"]) == (3, 1)
    # The trainer's own count: the third step was made on the second checkpoint.
    assert trained_steps(servers, 3) == 3
    async with servers.running() as server:
        await until_back(server, 3)
        assert (await batch_ids(server))[:2] == before[:2]


async def test_the_batches_after_it_are_trained_again_where_that_is_asked_for(
    server: Running,
) -> None:
    await server.roll(checkpoint_every=1)
    for _ in range(3):
        await server.batch()
    before = await batch_ids(server)
    await pause(server)
    await resume(server, from_step=1, retrain=True)
    await until_back(server, 3)
    assert await batch_ids(server) == before
    assert await server.service.store.batches(after_step=0, refused=True) == []


async def test_a_run_that_rolls_goes_back_to_the_model_that_it_began_with(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await server.roll(checkpoint_every=1)
        await server.batch()
        await resume(server, from_step=0)
        await until_back(server, 0)
        await server.batch()
    assert trained_steps(servers, 1) == 1


async def test_a_batch_that_is_held_back_can_be_given_up(server: Running) -> None:
    await server.roll(failures={"zero_signal_steps": 1}, checkpoint_every=100)
    await server.batch()
    await asyncio.gather(*(server.episode(task, 1.0) for task in "aabb"))
    await until_state(server, ServerState.PAUSED)
    # The weights from before it were kept when it was held back.
    await resume(server, from_step=1)
    await until_back(server, 1)
    assert (await status(server))["findings"] == []
    await server.batch()
    assert server.service.coordinator.step == 2


@pytest.mark.parametrize("at", ["rewind", "forget", "clear"])
async def test_a_server_that_is_killed_meanwhile_goes_back_when_it_is_started_again(
    servers: ServerFactory, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    reached = asyncio.Event()

    async def never(*_: object, **__: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    async with servers.running() as server:
        await server.roll(checkpoint_every=1)
        for _ in range(3):
            await server.batch()
        before = await batch_ids(server)
        await pause(server)
        with monkeypatch.context() as patch:
            if at == "rewind":
                patch.setattr(RunStore, "rewind", never)
            elif at == "forget":
                rewind = RunStore.rewind

                async def then_never(*args: Any, **more: Any) -> None:
                    await rewind(*args, **more)
                    await never()

                patch.setattr(RunStore, "rewind", then_never)
            else:
                loop = server.service.coordinator.loop
                assert loop is not None
                patch.setattr(loop, "_went_back", never)
            await resume(server, from_step=1)
            await reached.wait()
            # Ended like this, nothing more is written.
            await server.service.interrupt()
    async with servers.running() as server:
        await until_back(server, 1)
        assert await batch_ids(server) == before[:1]
        assert len(await server.service.store.batches(after_step=0, refused=True)) == 2
        record = await server.service.store.get_run()
        assert record is not None
        assert (record.back_to, record.paused) == (None, "")
        await server.batch()
    assert trained_steps(servers, 2) == 2


async def test_a_step_without_a_checkpoint_is_refused_with_those_that_exist(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await server.roll(checkpoint_every=2)
        answer = await server.http.post("/v1/run/resume", headers=CONTROL, json={"from_step": 3})
        assert error_of(answer)["message"] == (
            "the checkpoint of step 3 does not exist, and there are no other checkpoints; use step "
            "0 for the model that the run started with"
        )
        for _ in range(4):
            await server.batch()
        answer = await server.http.post("/v1/run/resume", headers=CONTROL, json={"from_step": 3})
        assert answer.status_code == 409
        assert error_of(answer)["message"] == (
            "the checkpoint of step 3 does not exist; use one of these steps: 2, 4, or 0 for the "
            "model that the run started with"
        )
        damaged = servers.run_dir / "checkpoints" / "step-000002" / "scripted_trainer.json"
        damaged.write_text("{}")
        answer = await server.http.post("/v1/run/resume", headers=CONTROL, json={"from_step": 2})
        assert (
            "the checkpoint of step 2 is damaged; use one of these steps: 4, or 0 for the model"
            in error_of(answer)["message"]
        )
        # Nothing has changed.
        assert server.service.coordinator.step == 4


@pytest.mark.parametrize("body", [{"retrain": True}, {"from_step": -1}, {"from_step": "2"}])
async def test_what_cannot_be_meant_is_refused(server: Running, body: dict[str, Any]) -> None:
    await server.roll()
    answer = await server.http.post("/v1/run/resume", headers=CONTROL, json=body)
    assert answer.status_code == 400


async def test_a_run_that_is_not_active_cannot_go_back(server: Running) -> None:
    answer = await server.http.post("/v1/run/resume", headers=CONTROL, json={"from_step": 0})
    assert answer.status_code == 409
