"""Both clients behind one interface, over a scripted transport: they must behave the same."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

URL = "http://swarm.test"
TOKEN = "control-token-of-the-test"
KEY = "episode-key-that-nobody-may-see"
PROTOCOL = {"versions": ["1.0"], "server_version": "0.1.0"}
RUN_CONFIG = {"model": {"path": "model"}}
GRANT = {
    "episode_id": "ep-1",
    "task_id": "task-1",
    "group": "task-1",
    "kind": "train",
    "base_url": f"{URL}/v1",
    "api_key": KEY,
    "model": "default",
    "policy_version": 3,
    "lease_seconds": 600.0,
}


def episode_status(**changes: Any) -> dict[str, Any]:
    """A valid answer of the episode routes."""
    return {
        "episode_id": "ep-1",
        "task_id": "task-1",
        "group": "task-1",
        "kind": "train",
        "tag": "",
        "state": "open",
        "reward": None,
        "reason": "",
        "calls": 0,
        "policy_version": 3,
        "lease_expires_in": 600.0,
    } | changes


def server_status(**changes: Any) -> dict[str, Any]:
    """A valid answer of ``GET /v1/status``."""
    return {
        "state": "ROLLING",
        "run_id": "run-1",
        "model": "default",
        "policy_version": 3,
        "step": 3,
        "batch": None,
        "last_step": None,
        "counters": {},
        "uptime_seconds": 1.0,
        "error": None,
    } | changes


def run_status(**changes: Any) -> dict[str, Any]:
    """A valid answer of the run routes."""
    return {
        "run_id": "run-1",
        "state": "ROLLING",
        "config": RUN_CONFIG,
        "export_dir": None,
    } | changes


def error(
    type_: str, message: str = "no", retry_after: float | None = None, **more: Any
) -> dict[str, Any]:
    """A body of the protocol for an error."""
    return {
        "error": {"type": type_, "message": message, "param": None, "retry_after": retry_after}
        | more
    }


@dataclass
class Script:
    """Answers of a server: for each request (status, body), an exception, or a function of it.

    The last answer of a route is given again and again.
    """

    answers: dict[str, list[Any]] = field(default_factory=dict)
    requests: list[httpx2.Request] = field(default_factory=list)

    def on(self, route: str, *answers: Any) -> Script:
        """Add answers to a route such as ``POST /v1/episodes``."""
        self.answers.setdefault(route, []).extend(answers)
        return self

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        route = f"{request.method} {request.url.path}"
        if route == "GET /v1/protocol" and route not in self.answers:
            return httpx2.Response(200, json=PROTOCOL)
        self.requests.append(request)
        answers = self.answers[route]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx2.Response):
            return answer
        status, body = answer
        return httpx2.Response(status, json=body)

    def bodies(self) -> list[Any]:
        """The JSON bodies of all requests but that for the protocol."""
        return [json.loads(r.content) if r.content else None for r in self.requests]

    def routes(self) -> list[str]:
        """Method and path of all requests but that for the protocol."""
        return [f"{r.method} {r.url.path}" for r in self.requests]


class Clock:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    async def async_sleep(self, seconds: float) -> None:
        self.sleep(seconds)


class Face:
    """A client of either kind whose methods are all awaited."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method."""
        result = getattr(self.client, name)(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    async def events(self, count: int, since: int | None = None) -> list[Any]:
        """The next `count` events."""
        found: list[Any] = []
        stream = self.client.events(since)
        if hasattr(stream, "__anext__"):
            while len(found) < count:
                found.append(await anext(stream))
            await stream.aclose()
        else:
            while len(found) < count:
                found.append(next(stream))
            stream.close()
        return found


MakeFace = Callable[..., Face]
