"""A stub of the server: the episode routes on real sockets, written after the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse


class SwarmStub:
    """Grants every claim; remembers what became of the episodes.

    :ivar outcomes: per episode id its final status.
    :ivar leases_end: every end comes too late.
    :ivar most_open: the most episodes that were open at once.
    :ivar in_order: whether tasks are to be claimed in order.
    :ivar overtaken: tasks that were claimed before one that comes before them was granted, or a
        second time before it was granted itself; task ids are numbers.
    :ivar held: the claim of this task waits until the next task was claimed.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tasks: dict[str, str] = {}
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.beats: Counter[str] = Counter()
        self.most_open = 0
        self.refuse: dict[str, Any] | None = None
        self.leases_end = False
        self.beaten = threading.Event()
        self.in_order = False
        self.paces: Iterator[int | None] = iter(())
        self.overtaken: list[str] = []
        self.held = ""
        self._claimed: Counter[str] = Counter()
        self.app = FastAPI()
        self._routes()

    def by_task(self, task: str) -> list[dict[str, Any]]:
        """Final states of the episodes of a task."""
        return [self.outcomes[e] for e, t in self.tasks.items() if t == task and e in self.outcomes]

    def still_open(self) -> set[str]:
        """Episodes without a final state."""
        return set(self.tasks) - set(self.outcomes)

    def _status(self, episode: str) -> dict[str, Any]:
        outcome = self.outcomes.get(episode, {"state": "open", "reward": None, "reason": ""})
        return {
            "episode_id": episode,
            "task_id": self.tasks[episode],
            "group": self.tasks[episode],
            "kind": "train",
            "tag": "",
            "calls": 0,
            "policy_version": 0,
            "lease_expires_in": None,
        } | outcome

    def _routes(self) -> None:
        @self.app.get("/v1/protocol")
        async def protocol() -> dict[str, Any]:
            return {"versions": ["1.0"], "server_version": "stub"}

        @self.app.post("/v1/episodes")
        async def claim(request: Request) -> Any:
            body = await request.json()
            if self.refuse is not None:
                return JSONResponse({"error": self.refuse}, status_code=self.refuse["status"])
            task = str(body["task_id"])
            self._claimed[task] += 1
            granted = set(self.tasks.values())
            if task.isdecimal():
                before = {str(number) for number in range(int(task))}
                if before - granted or (task not in granted and self._claimed[task] > 1):
                    self.overtaken.append(task)
            while task == self.held and not self._claimed[str(int(task) + 1)]:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            with self.lock:
                episode = f"ep-{len(self.tasks)}"
                self.tasks[episode] = body["task_id"]
                self.most_open = max(self.most_open, len(self.still_open()))
            return {
                "episode_id": episode,
                "task_id": body["task_id"],
                "group": body["group"] or body["task_id"],
                "kind": body["kind"],
                "base_url": "http://unused/v1",
                "api_key": f"key-of-{episode}",
                "model": "default",
                "policy_version": 0,
                "lease_seconds": body["lease_seconds"],
            }

        @self.app.post("/v1/heartbeats")
        async def heartbeats(request: Request) -> Any:
            for episode in (await request.json())["episode_ids"]:
                self.beats[episode] += 1
            self.beaten.set()
            return {"closed": {}}

        @self.app.get("/v1/pace")
        async def pace() -> Any:
            return {"in_order": self.in_order, "episodes": next(self.paces, None)}

        @self.app.post("/v1/groups")
        async def groups(request: Request) -> Any:
            body = await request.json()
            counts = {}
            for group in body["groups"]:
                states = [
                    self.outcomes.get(episode, {"state": "open"})["state"]
                    for episode, task in self.tasks.items()
                    if task == group
                ]
                counts[group] = {s: states.count(s) for s in ("open", "ended", "aborted")}
            return {"groups": counts}

        @self.app.post("/v1/episodes/{episode}/{verb}")
        async def change(episode: str, verb: str, request: Request) -> Any:
            body = await request.json()
            state = (
                {"state": "ended", "reward": body["reward"], "reason": ""}
                if verb == "end"
                else {
                    "state": "aborted",
                    "reward": None,
                    **{name: body[name] for name in ("reason", "cause", "final")},
                }
            )
            with self.lock:
                if self.leases_end and verb == "end":
                    state = {"state": "aborted", "reward": None, "reason": "late", "final": False}
                outcome = self.outcomes.setdefault(episode, state)
                if verb == "abort" and outcome["state"] == "aborted":
                    outcome["final"] |= body["final"]
            if outcome["state"] == "aborted" and verb == "end":
                error = {"type": "episode_closed", "message": "lease expired"}
                return JSONResponse({"error": error}, status_code=410)
            return self._status(episode)


@contextlib.contextmanager
def serve(app: FastAPI) -> Iterator[str]:
    """`app` on a free port of this machine, in a thread; yields its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    ready = threading.Event()

    async def run() -> None:
        async def announce() -> None:
            while not server.started:
                await asyncio.sleep(0)
            ready.set()

        waiting = asyncio.create_task(announce())
        await server.serve()
        await waiting

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    try:
        assert ready.wait(20)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
