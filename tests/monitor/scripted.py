"""A server with fixed answers, and the screen of a monitor as text."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from textual.app import App

from agentjet.client import AsyncViewClient
from ajet_cli.monitor.app import MonitorApp
from ajet_cli.monitor.layout import UNICODE, Glyphs
from ajet_cli.monitor.watch import ServerWatch

SCREENS = Path(__file__).parent / "screens"
NOW = 1_795_000_000.0

STATUS: dict[str, Any] = {
    "state": "ROLLING",
    "run_id": "grid-7",
    "model": "/models/tiny",
    "policy_version": 12,
    "step": 12,
    "batch": {
        "ready": 3,
        "needed": 8,
        "full_by": "tasks",
        "open_episodes": 20,
        "quarantined": 1,
    },
    "last_step": {
        "step": 12,
        "policy_version": 12,
        "metrics": {
            "reward_mean": 0.625,
            "loss": -0.0123,
            "rollout_seconds": 8.25,
            "merge_seconds": 0.1,
            "update_seconds": 2.5,
            "sync_seconds": 0.4,
        },
    },
    "counters": {"episodes": 400.0, "aborted_timeout": 3.0, "aborted_error": 12.0},
    "uptime_seconds": 3725.0,
    "error": None,
    "findings": [
        {
            "code": "reward_flat",
            "message": (
                "the reward has not changed for 8 steps; look at the episodes with the highest "
                "reward, or lower batch.episodes_per_task"
            ),
            "seconds": 0.0,
            "stuck": False,
            "since_step": 4,
            "good_step": 2,
        },
        {
            "code": "no_client",
            "message": "no client claims episodes: start one",
            "seconds": 95.0,
            "stuck": True,
        },
    ],
    "quarantined": [
        {
            "client_id": "tok-1",
            "group": "g",
            "task_id": "task-9",
            "aborts": 3,
            "reason": "ValueError: no such file",
        }
    ],
}
OVERVIEW: dict[str, Any] = {
    "scope": "view",
    "sentence": (
        "Run grid-7 is filling the batch of step 13: 3 of 8 tasks are ready and 20 episodes open."
    ),
    "status": STATUS,
    "config": None,
    "clients": [
        {"client": "tok-1", "name": "laptop", "open_episodes": 16, "oldest_seconds": 12.0},
        {"client": "tok-2", "name": "", "open_episodes": 4, "oldest_seconds": 190.0},
    ],
    "seconds_per_step": 11.25,
    "time": NOW,
    "again_seconds": 5.0,
}
CURVES: dict[str, Any] = {
    "names": ["entropy", "loss", "reward_mean"],
    "total": 12,
    "steps": list(range(1, 13)),
    "times": [NOW - 12 + step for step in range(12)],
    "curves": {
        "entropy": {"mean": [1.5, 1.4, None, 1.2, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]},
        "loss": {"mean": [0.1, -0.1] * 6},
        "reward_mean": {"mean": [step / 16 for step in range(12)]},
    },
}


def episode(number: int, **changes: Any) -> dict[str, Any]:
    """A row of a list of episodes."""
    return {
        "episode_id": f"episode-{number}",
        "task_id": f"task-{number}",
        "group": "",
        "kind": "train",
        "tag": "",
        "state": "ended",
        "client": "tok-1",
        "version": 11,
        "reward": number / 4,
        "components": {"success": 1.0},
        "agent_rewards": {},
        "reason": "",
        "cause": "",
        "claimed_at": NOW - 60,
        "finished_at": NOW - 48,
        "trained": True,
        **changes,
    }


EPISODES: dict[str, Any] = {
    "episodes": [
        episode(3, state="open", reward=None, finished_at=None, trained=False),
        episode(2),
        episode(
            1, state="aborted", cause="timeout", reward=None, reason="the agent took over 60 s"
        ),
    ]
}
MESSAGES: dict[str, Any] = {
    "episode": episode(2),
    "calls": [
        {
            "call_id": "call-a",
            "agent": "",
            "messages": [
                {"role": "system", "content": "You walk on a grid."},
                {"role": "user", "content": "The goal is up.\nWhere do you go?"},
            ],
            "answer": {"role": "assistant", "content": "up", "tool_calls": 'move({"to": "up"})'},
            "finish_reason": "stop",
            "tokens": 2,
            "at": NOW - 50,
        }
    ],
}
PAGE: dict[str, Any] = {
    "textProblem": "",
    "vocabulary": {"1": "<s>", "2": " up", "3": [240, 159], "4": "goal"},
    "episodes": [
        {
            "cut": 0,
            "nodes": [
                {"parent": -1, "ids": [1, 4, 9], "cut": 0, "by": [], "roles": [[1, 3, "user", ""]]},
                {
                    "parent": 0,
                    "ids": [2, 3],
                    "cut": 0,
                    "by": [[0, 0]],
                    "roles": [[0, 2, "assistant", ""]],
                },
            ],
            "calls": [
                {
                    "id": "call-a",
                    "index": 0,
                    "agent": "",
                    "finish": "stop",
                    "temperature": 1.0,
                    "end": 1,
                    "prompt": 3,
                    "logprobs": [-0.25, -1.5],
                    "trainer": [-0.26, None],
                    "versions": [[11, 1], [12, 1]],
                    "advantage": 0.5,
                    "reward": None,
                }
            ],
        }
    ],
}


def _some_steps(answer: dict[str, Any], query: httpx2.QueryParams) -> dict[str, Any]:
    """The points of the steps after one, until another, as the server has them."""
    after, until = int(query["after"]), int(query["until"])
    at = [i for i, step in enumerate(answer["steps"]) if after < step <= until]
    curves = {
        name: {"mean": [curve["mean"][i] for i in at]} for name, curve in answer["curves"].items()
    }
    cut = {name: [answer[name][i] for i in at] for name in ("steps", "times")}
    return {**answer, **cut, "curves": curves}


class ScriptedServer(httpx2.AsyncBaseTransport):
    """Answers requests from `answers`, by path.

    :ivar away: refuse connections.
    :ivar waits: by path, what its answers wait for.
    :ivar asked: the paths with their queries, in order.
    """

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "/v1/overview": OVERVIEW,
            "/v1/steps": CURVES,
            "/v1/episodes": EPISODES,
            "/v1/timelines/episode-2/messages": MESSAGES,
            "/v1/timelines/episode-2/page": PAGE,
            **answers,
        }
        self.away = False
        self.waits: dict[str, asyncio.Event] = {}
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if self.away:
            raise httpx2.ConnectError("refused")
        if path == "/v1/protocol":
            return httpx2.Response(200, json={"versions": ["1.0"], "server_version": "0.1.0"})
        self.asked.append(str(request.url.raw_path, "ascii"))
        if path in self.waits:
            await self.waits[path].wait()
        answer = self.answers[path]
        if path == "/v1/steps" and "until" in request.url.params:
            answer = _some_steps(answer, request.url.params)
        if isinstance(answer, httpx2.Response):
            return httpx2.Response(answer.status_code, content=answer.content)
        return httpx2.Response(200, content=json.dumps(answer).encode())


def monitor(
    *servers: ScriptedServer, glyphs: Glyphs = UNICODE, clock: Callable[[], float] = lambda: NOW
) -> MonitorApp:
    """A monitor of scripted servers."""
    clients = [
        AsyncViewClient(f"http://127.0.0.1:{8000 + at}", "token", transport=server)
        for at, server in enumerate(servers)
    ]
    return MonitorApp(clients, glyphs, lambda *given: ServerWatch(*given, clock=clock))


def screen_text(app: App[Any]) -> str:
    """What is on the screen, without spaces at the ends of lines."""
    strips = app.screen._compositor.render_strips(app.size)
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


def assert_screen(app: App[Any], name: str) -> None:
    """Compare the screen with a file; AJET_WRITE_SCREENS=1 writes it."""
    file = SCREENS / f"{name}.txt"
    text = screen_text(app)
    if os.environ.get("AJET_WRITE_SCREENS"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
