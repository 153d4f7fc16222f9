"""The screens of ``ajet monitor`` as text, with a server of fixed answers."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from ajet_cli.monitor.layout import ASCII
from tests.monitor.scripted import (
    CURVES,
    EPISODES,
    MESSAGES,
    OVERVIEW,
    PAGE,
    ScriptedServer,
    assert_screen,
    episode,
    monitor,
    screen_text,
)

# Each takes a second of CPU time.
pytestmark = pytest.mark.slow

SIZE = (80, 24)
# Terminal escapes, a link, the clipboard (OSC 52), text that runs backwards, and Rich's markup.
HOSTILE = "\x1b[2J\x1b]52;c;aGk=\x07\x9b31m\u202e [bold red]x[/bold red] [link=http://x]y[/link]"


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


async def press(pilot: Any, *keys: str) -> None:
    """Press keys, and wait until what they began has ended."""
    for key in keys:
        await pilot.press(key)
        await settle(pilot)


async def settle(pilot: Any) -> None:
    """Wait until requests of the screen and what follows from them have ended."""
    await pilot.pause()
    reading = [worker for worker in pilot.app.workers if worker.group in {"read", "build"}]
    if reading:
        await pilot.app.workers.wait_for_complete(reading)
    await pilot.pause()
    building = [worker for worker in pilot.app.workers if worker.group == "build"]
    if building:
        await pilot.app.workers.wait_for_complete(building)
    await pilot.pause()


async def test_overview() -> None:
    app = monitor(ScriptedServer())
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        assert_screen(app, "overview")
        for key in ("end", "G"):
            await press(pilot, "home", key)
            assert_screen(app, "overview_end")


async def test_overview_in_ascii() -> None:
    app = monitor(ScriptedServer(), glyphs=ASCII)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        assert screen_text(app).isascii()
        assert_screen(app, "overview_ascii")


async def test_overview_in_a_small_terminal() -> None:
    app = monitor(ScriptedServer())
    async with app.run_test(size=(38, 12)) as pilot:
        await settle(pilot)
        assert_screen(app, "overview_small")


async def test_curves() -> None:
    app = monitor(ScriptedServer())
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "c", "down")
        assert_screen(app, "curves")
        await press(pilot, "slash", *"rew", "enter")
        assert "reward_mean" in screen_text(app)
        assert "entropy" not in screen_text(app)


async def test_a_step_beside_the_one_before() -> None:
    server = ScriptedServer()
    app = monitor(server)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "s", "down")
        assert_screen(app, "step")
        await press(pilot, "p")
        assert "Step 11 of 12" in screen_text(app)
        assert "▶ loss" in screen_text(app)
        assert _row(app, "loss") == ["loss", "-0.1", "0.1", "+0.2"]
        # A value that a step lacks is no change.
        await press(pilot, "s", *"3", "enter")
        assert _row(app, "entropy") == ["entropy", "1.4", "-", "-"]
        await press(pilot, "s", *"1", "enter", "p")
        assert "Step 1 of 12" in screen_text(app)
        assert _row(app, "loss") == ["loss", "-", "0.1", "-"]
        await press(pilot, "s", *"77", "enter")
        assert "This run has no step 77." in screen_text(app)
        await press(pilot, "s", "backspace", "enter", "slash", *"rew", "enter")
        assert "Step 12 of 12" in screen_text(app)
        assert "entropy" not in screen_text(app)
        await press(pilot, "e")
        # The server may have been asked for its state since.
        listed = next(path for path in reversed(server.asked) if path.startswith("/v1/episodes"))
        assert httpx2.URL(listed).params["step"] == "12"


async def test_a_step_in_ascii_and_in_a_small_terminal() -> None:
    app = monitor(ScriptedServer(), glyphs=ASCII)
    async with app.run_test(size=(40, 10)) as pilot:
        await settle(pilot)
        await press(pilot, "c", "down", "down", "enter")
        text = screen_text(app)
        assert text.isascii()
        # The metric of the curve, without the column of changes.
        assert "> reward_mean" in text
        assert "change" not in text
        assert _row(app, "reward_mean")[1:] == ["0.625", "0.6875"]


async def test_the_newest_step_is_shown_until_another_is_chosen() -> None:
    server = ScriptedServer()
    app = monitor(server)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "s", "p")
        more = copy.deepcopy(CURVES)
        more["steps"] = [step + 1 for step in more["steps"]]
        overview = copy.deepcopy(OVERVIEW)
        overview["status"]["last_step"]["step"] = 13
        server.answers |= {"/v1/overview": overview, "/v1/steps": more}
        await press(pilot, "r")
        assert "Step 11 of 13" in screen_text(app)
        await press(pilot, "n", "n", "n")
        assert "Step 13 of 13" in screen_text(app)
        more = copy.deepcopy(more)
        more["steps"] = [step + 1 for step in more["steps"]]
        overview = copy.deepcopy(overview)
        overview["status"]["last_step"]["step"] = 14
        server.answers |= {"/v1/overview": overview, "/v1/steps": more}
        await press(pilot, "r")
        assert "Step 14 of 14" in screen_text(app)


async def test_without_a_step_there_are_no_metrics() -> None:
    nothing = {"names": [], "total": 0, "steps": [], "times": [], "curves": {}}
    app = monitor(ScriptedServer(**{"/v1/steps": nothing}))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "s", "n", "e")
        assert "No step has ended yet." in screen_text(app)


def _row(app: Any, name: str) -> list[str]:
    """The cells of a row of the screen, without the cursor."""
    return next(
        cells
        for row in screen_text(app).splitlines()
        if (cells := row.strip("▶> ").split()) and cells[0] == name
    )


async def test_episodes() -> None:
    server = ScriptedServer()
    app = monitor(server)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "e", "down")
        assert_screen(app, "episodes")


async def test_an_episode_its_calls_and_its_tokens() -> None:
    app = monitor(ScriptedServer())
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "e", "down", "enter")
        assert_screen(app, "messages")
        await press(pilot, "c")
        assert_screen(app, "calls")
        await press(pilot, "enter")
        assert_screen(app, "tokens")
        await press(pilot, "down")
        assert "bytes f0 9f" in screen_text(app)
        await press(pilot, "home")
        assert "role none (template), context" in screen_text(app)
        await press(pilot, "n")
        said = " ".join(screen_text(app).split())
        assert "logprob of the engine -0.2500, of the trainer -0.2600" in said


async def test_help_and_the_way_back() -> None:
    app = monitor(ScriptedServer())
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "e", "question_mark")
        assert_screen(app, "help")
        await press(pilot, "escape", "escape")
        assert_screen(app, "overview")
        # The first screen has none before it.
        await press(pilot, "escape")
        assert_screen(app, "overview")


async def test_several_servers_one_of_them_gone() -> None:
    first, second = ScriptedServer(), ScriptedServer()
    second.away = True
    app = monitor(first, second)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        assert_screen(app, "servers")
        await press(pilot, "enter")
        assert "127.0.0.1:8000" in screen_text(app)
        assert "grid-7 is filling" in screen_text(app)


async def test_a_server_that_goes_is_shown_as_gone_and_comes_back() -> None:
    server = ScriptedServer()
    seconds = [1_795_000_000.0]
    app = monitor(server, clock=lambda: seconds[0])
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        server.away = True
        await press(pilot, "r")
        seconds[0] += 90
        await press(pilot, "r")
        # What it said last is still there.
        assert_screen(app, "gone")
        server.away = False
        await press(pilot, "r")
        assert_screen(app, "overview")


async def test_the_monitor_can_be_used_while_a_server_is_slow() -> None:
    server = ScriptedServer()
    app = monitor(server)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        server.waits["/v1/episodes"] = asyncio.Event()
        await pilot.press("e")
        await pilot.pause()
        assert "reading" in screen_text(app)
        await pilot.press("question_mark")
        await pilot.pause()
        assert "Ctrl-C" in screen_text(app)
        await pilot.press("escape")
        server.waits["/v1/episodes"].set()
        await settle(pilot)
        assert "task-2" in screen_text(app)


async def test_a_token_without_access_says_which_one_is_needed() -> None:
    error = {
        "error": {
            "type": "invalid_api_key",
            "message": "this token is not known",
        }
    }
    server = ScriptedServer(**{"/v1/overview": httpx2.Response(401, json=error)})
    app = monitor(server)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        text = screen_text(app)
        assert "No access: this token is not known" in text
        assert "ajet token create --scope view" in text


async def test_the_list_asks_for_what_was_chosen() -> None:
    server = ScriptedServer()
    app = monitor(server)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "e", "o", "a", "w")
        await press(pilot, "t", *"a b", "enter")
        await press(pilot, "s", *"7", "enter")
        query = httpx2.URL(server.asked[-1]).params
        assert dict(query) == {
            "order": "highest",
            "limit": "200",
            "state": "open",
            "outputs": "true",
            "task": "a b",
            "step": "7",
        }
        # Escape leaves a filter as it was.
        await press(pilot, "s", *"9", "escape")
        assert "step=7" in server.asked[-1]


async def test_why_a_run_is_paused_is_shown_once() -> None:
    server = ScriptedServer()
    overview = copy.deepcopy(OVERVIEW)
    overview["sentence"] = "The run is paused: no space"
    paused = {"code": "paused", "message": "the run is paused: no space", "seconds": 1.0}
    overview["status"]["findings"].insert(0, {**paused, "stuck": False})
    server.answers["/v1/overview"] = overview
    app = monitor(server)
    async with app.run_test(size=(160, 40)) as pilot:
        await settle(pilot)
        assert screen_text(app).count("no space") == 1
    overview["status"].update(findings=[], paused="no space")
    app = monitor(server)
    async with app.run_test(size=(160, 40)) as pilot:
        await settle(pilot)
        assert "nothing that is watched looks wrong" not in screen_text(app)


@pytest.mark.parametrize("place", ["sentence", "finding", "client", "task", "message", "token"])
async def test_hostile_text_is_shown_as_text(place: str) -> None:
    server = ScriptedServer()
    overview, episodes, messages, page = map(copy.deepcopy, (OVERVIEW, EPISODES, MESSAGES, PAGE))
    if place == "sentence":
        overview["sentence"] = HOSTILE
    elif place == "finding":
        overview["status"]["findings"][0]["message"] = HOSTILE
    elif place == "client":
        overview["clients"][0]["name"] = HOSTILE
    elif place == "task":
        episodes["episodes"][1] = episode(2, task_id=HOSTILE)
    elif place == "message":
        messages["calls"][0]["answer"]["content"] = HOSTILE
    else:
        page["vocabulary"]["2"] = HOSTILE
    server.answers |= {
        "/v1/overview": overview,
        "/v1/episodes": episodes,
        "/v1/timelines/episode-2/messages": messages,
        "/v1/timelines/episode-2/page": page,
    }
    app = monitor(server)
    async with app.run_test(size=(160, 40)) as pilot:
        await settle(pilot)
        keys = {"task": "e", "message": "e down enter", "token": "e down enter t"}
        await press(pilot, *keys.get(place, "").split())
        text = screen_text(app)
        assert "\\u001b[2J\\u001b]52" in text
        assert not any(char in text for char in "\x1b\x07\x9b\u202e")
        if place in {"sentence", "finding", "message"}:
            assert "\\u202e [bold red]x[/bold red] [link=http://x]y[/link]" in text


@pytest.mark.slow
async def test_an_answer_of_two_million_characters_is_paged() -> None:
    messages = copy.deepcopy(MESSAGES)
    content = "\x1b" * 1000 + "word " * 4000
    messages["calls"] = [
        {
            **MESSAGES["calls"][0],
            "answer": {"role": "assistant", "content": content, "cut": 9_980_000},
        }
    ] * 80
    app = monitor(ScriptedServer(**{"/v1/timelines/episode-2/messages": messages}))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "e", "down", "enter")
        assert "9,980,000 characters left out" in screen_text(app)
        await press(pilot, "end")
        text = screen_text(app)
        assert "word word word" in text
        assert "/" in text.splitlines()[-1]


@pytest.mark.slow
async def test_an_episode_of_a_million_tokens_is_drawn_where_it_is_looked_at() -> None:
    page = copy.deepcopy(PAGE)
    page["episodes"][0]["nodes"][0]["ids"] = [4] * 1_000_000
    app = monitor(ScriptedServer(**{"/v1/timelines/episode-2/page": page}))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "e", "down", "enter", "t")
        text = screen_text(app)
        assert "1,000,002 tokens" in text
        assert '" up"' in text
        await press(pilot, "home", "pagedown")
        assert '"goal"' in screen_text(app)


async def test_another_size_of_the_terminal_keeps_the_cursor_in_sight() -> None:
    rows = {"episodes": [episode(number) for number in range(100)]}
    app = monitor(ScriptedServer(**{"/v1/episodes": rows}))
    async with app.run_test(size=(100, 40)) as pilot:
        await settle(pilot)
        await press(pilot, "e", "pagedown")
        chosen = next(row for row in screen_text(app).splitlines() if row.startswith("▶"))[:9]
        await pilot.resize_terminal(50, 12)
        await settle(pilot)
        assert chosen in screen_text(app)
        assert max(map(len, screen_text(app).splitlines())) <= 50


async def test_a_list_that_could_not_be_read_is_read_again() -> None:
    busy = {"error": {"type": "internal_error", "message": "the disk is slow"}}
    server = ScriptedServer(**{"/v1/episodes": httpx2.Response(500, json=busy)})
    app = monitor(server)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "e")
        assert "! the disk is slow" in screen_text(app)
        server.answers["/v1/episodes"] = EPISODES
        await app.watches[0].refresh()
        await settle(pilot)
        assert "task-2" in screen_text(app)
        assert "the disk is slow" not in screen_text(app)


async def test_an_open_episode_is_followed() -> None:
    messages = {**MESSAGES, "episode": episode(2, state="open")}
    server = ScriptedServer(**{"/v1/timelines/episode-2/messages": {**messages, "calls": []}})
    app = monitor(server)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "e", "down", "enter")
        assert "No model call has ended yet." in screen_text(app)
        server.answers["/v1/timelines/episode-2/messages"] = messages
        await app.watches[0].refresh()
        await settle(pilot)
        assert "Where do you go?" in screen_text(app)


async def test_an_open_episode_is_read_to_its_end_while_the_server_is_asked_again() -> None:
    path = "/v1/timelines/episode-2/messages"
    messages = {**MESSAGES, "episode": episode(2, state="open")}
    server = ScriptedServer(**{path: {**messages, "calls": []}})
    app = monitor(server)

    def reads() -> int:
        return sum(asked.startswith(path) for asked in server.asked)

    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "e", "down", "enter")
        assert reads() == 1
        server.answers[path] = messages
        server.waits[path] = asyncio.Event()
        for _ in range(3):
            await app.watches[0].refresh()
            await pilot.pause()
        assert reads() == 2
        server.waits[path].set()
        await settle(pilot)
        assert "Where do you go?" in screen_text(app)
        await app.watches[0].refresh()
        await settle(pilot)
        assert reads() == 3


async def test_messages_are_wrapped_again_for_another_width() -> None:
    content = " ".join(f"word{number}" for number in range(30))
    messages = copy.deepcopy(MESSAGES)
    messages["calls"][0]["messages"][1]["content"] = content
    app = monitor(ScriptedServer(**{"/v1/timelines/episode-2/messages": messages}))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, "e", "down", "enter")
        for width in (40, 120):
            await pilot.resize_terminal(width, 24)
            await settle(pilot)
            words = screen_text(app).split()
            assert [word for word in words if word.startswith("word")] == content.split()
