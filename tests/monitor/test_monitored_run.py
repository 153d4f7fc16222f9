"""``ajet monitor`` with a real server and a run, down to a token."""

from __future__ import annotations

import pytest

from agentjet.client import AsyncViewClient
from ajet_cli.monitor.app import MonitorApp
from ajet_cli.monitor.layout import UNICODE
from ajet_testing.servers import CONTROL, Running, new_token, revoke
from tests.monitor.scripted import screen_text
from tests.monitor.test_screens import press, settle

pytestmark = pytest.mark.processes


async def test_from_the_overview_to_a_token(server: Running) -> None:
    await server.roll()
    await server.batch()
    await server.batch()
    grant = await server.claim("last")
    asked = [{"role": "user", "content": "Which way?"}]
    answer = (await server.chat(grant, messages=asked)).json()
    content = answer["choices"][0]["message"]["content"]
    _, viewer = await new_token(server, "viewer", scope="view")
    client = AsyncViewClient(server.url, viewer["authorization"].removeprefix("Bearer "))
    app = MonitorApp([client], UNICODE)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.watches[0].refresh()
        await settle(pilot)
        text = screen_text(app)
        assert "is filling the batch of step 3" in text
        assert "Reward" in text
        await press(pilot, "c")
        assert "step 1" in screen_text(app)
        await press(pilot, "escape", "e")
        assert "▶ last" in screen_text(app)
        await press(pilot, "enter")
        text = screen_text(app)
        assert "Which way?" in text
        assert content.split()[0] in text
        await press(pilot, "t")
        text = screen_text(app)
        assert "sampled, not trained" in text
        assert "logprob of the engine" in text
        await press(pilot, "home")
        assert "context" in screen_text(app)


async def test_the_tokens_of_a_trained_episode(server: Running) -> None:
    await server.roll()
    await server.batch()
    app = MonitorApp(
        [AsyncViewClient(server.url, CONTROL["authorization"].removeprefix("Bearer "))], UNICODE
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await app.watches[0].refresh()
        await press(pilot, "e", "s", *"1", "enter", "enter", "c", "enter")
        text = screen_text(app)
        assert "role assistant, sampled, trained" in text
        assert "of the trainer -" in " ".join(text.split())
        assert "advantage" in text


async def test_a_revoked_token_is_refused_in_words(server: Running) -> None:
    token_id, viewer = await new_token(server, "viewer", scope="view")
    client = AsyncViewClient(server.url, viewer["authorization"].removeprefix("Bearer "))
    app = MonitorApp([client], UNICODE)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.watches[0].refresh()
        await revoke(server, token_id)
        await app.watches[0].refresh()
        await settle(pilot)
        assert "No access: " in screen_text(app)
