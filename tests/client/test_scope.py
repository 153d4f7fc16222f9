"""``with client.episode(...)``: however the block is left, the episode does not stay open."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from ajet_core.errors import RequestError, ServerUnreachableError
from tests.support.clients import GRANT, KEY, Face, MakeFace, Script, episode_status

END = "POST /v1/episodes/ep-1/end"
ABORT = "POST /v1/episodes/ep-1/abort"


@pytest.fixture
def script() -> Script:
    script = Script().on("POST /v1/episodes", (200, GRANT))
    script.on(END, (200, episode_status(state="ended", reward=1.0)))
    return script.on(ABORT, (200, episode_status(state="aborted")))


async def within(face: Face, body: Callable[[Any], Awaitable[None]]) -> None:
    """Run `body` in the block of either client."""
    scope = face.client.episode("task-1", tag="maths")
    if hasattr(scope, "__aenter__"):
        async with scope as episode:
            await body(episode)
    else:
        with scope as episode:
            await body(episode)


async def test_ending_inside(make: MakeFace, script: Script) -> None:
    async def body(episode: Any) -> None:
        status = episode.end(0.5, metadata={"a": "b"})
        status = await status if inspect.isawaitable(status) else status
        assert status.state == "ended"

    await within(make(script), body)
    assert script.routes() == ["POST /v1/episodes", END]
    assert script.bodies()[1]["reward"] == 0.5


async def test_the_reward_may_be_left_on_the_episode(make: MakeFace, script: Script) -> None:
    async def body(episode: Any) -> None:
        assert episode.api_key == KEY
        episode.reward = 1
        episode.components["format"] = 0.25

    await within(make(script), body)
    assert script.bodies()[1] == {
        "reward": 1.0,
        "components": {"format": 0.25},
        "call_rewards": {},
        "agent_rewards": {},
        "metadata": {},
    }


async def test_an_exception_aborts_with_its_reason(make: MakeFace, script: Script) -> None:
    async def body(episode: Any) -> None:
        raise ValueError(f"bad answer with key {episode.api_key}")

    with pytest.raises(ValueError, match="bad answer"):
        await within(make(script), body)
    assert script.routes() == ["POST /v1/episodes", ABORT]
    (sent,) = script.bodies()[1:]
    assert sent["reason"].splitlines()[0] == "ValueError: bad answer with key ***"
    assert KEY not in sent["reason"]
    assert (sent["cause"], sent["final"]) == ("error", False)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError])
async def test_being_stopped_aborts_too(
    make: MakeFace, script: Script, kind: type[BaseException]
) -> None:
    async def body(episode: Any) -> None:
        raise kind

    with pytest.raises(kind):
        await within(make(script), body)
    sent = script.bodies()[1]
    assert (sent["reason"], sent["cause"], sent["final"]) == (kind.__name__, "cancelled", False)


async def test_leaving_without_a_reward_aborts(make: MakeFace, script: Script) -> None:
    async def body(episode: Any) -> None:
        pass

    await within(make(script), body)
    assert script.bodies()[1]["reason"] == "the client left the episode without reporting a reward"


async def test_an_exception_after_the_end_changes_nothing(make: MakeFace, script: Script) -> None:
    async def body(episode: Any) -> None:
        status = episode.end(1.0)
        _ = await status if inspect.isawaitable(status) else status
        raise ValueError("too late")

    with pytest.raises(ValueError, match="too late"):
        await within(make(script), body)
    assert script.routes() == ["POST /v1/episodes", END]


async def test_the_first_error_is_the_one_that_counts(make: MakeFace) -> None:
    script = Script().on("POST /v1/episodes", (200, GRANT))
    script.on(ABORT, httpx2.ConnectError("refused"))

    async def body(episode: Any) -> None:
        raise ValueError("the real one")

    with pytest.raises(ValueError, match="the real one") as caught:
        await within(make(script), body)
    assert "aborting episode ep-1 failed too" in caught.value.__notes__[0]
    assert len(script.requests) == 2


async def test_a_failed_end_is_raised(make: MakeFace) -> None:
    script = Script().on("POST /v1/episodes", (200, GRANT)).on(END, httpx2.ConnectError("refused"))

    async def body(episode: Any) -> None:
        episode.reward = 1.0

    with pytest.raises(ServerUnreachableError):
        await within(make(script), body)


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "on the episode"])
async def test_a_reward_that_is_not_finite_aborts_with_the_reason(
    make: MakeFace, script: Script, inside: bool
) -> None:
    async def body(episode: Any) -> None:
        if inside:
            ending = episode.end(float("nan"))
            await ending if inspect.isawaitable(ending) else ending
        episode.reward = float("nan")

    with pytest.raises(RequestError, match="reward: Input should be a finite number"):
        await within(make(script), body)
    assert script.routes() == ["POST /v1/episodes", ABORT]
    assert "reward: Input should be a finite number" in script.bodies()[1]["reason"]


async def test_a_reward_that_the_server_refuses_aborts_with_the_reason(
    make: MakeFace, script: Script
) -> None:
    refusal = RequestError("reward is 1e+09, but must be from -1e+06 to 1e+06", param="reward")
    script.answers[END] = [(400, {"error": refusal.to_payload()})]

    async def body(episode: Any) -> None:
        episode.reward = 1e9

    with pytest.raises(RequestError, match="must be from"):
        await within(make(script), body)
    assert script.routes() == ["POST /v1/episodes", END, ABORT]
