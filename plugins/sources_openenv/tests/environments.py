"""A server of small environments, written with OpenEnv, each at a path of its own.

Usage: `environments.py TEMPLATE`. TEMPLATE is what `openenv init` has created; its environment is
at `/template`. The server prints its port. It answers at `/counts/NAME` how many sessions are open,
were open at once at most, and were begun. Importing OpenEnv takes ten seconds of a CPU: all tests
share this process.
"""

from __future__ import annotations

import importlib
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI
from fastmcp import FastMCP
from open_walks import SESSIONS, Walks
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field


class Said(Action):
    word: str = Field(description="the word")
    loud: bool = False


class Asked(Observation):
    question: str = ""


class Words(Environment):
    """Asks for the word that has the number of its seed. Seeds from 900 on fail in some way."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.seed: int | None = None

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Asked:
        self.seed = seed
        if seed == 900:
            raise RuntimeError("the reset has a bug")
        return Asked(question=f"Say word{seed}.", metadata={"solution": f"word{seed}"})

    def step(self, action: Said, timeout_s: float | None = None, **_: Any) -> Asked:
        if self.seed == 901:
            raise RuntimeError("the step has a bug")
        if self.seed == 902:
            time.sleep(3600)
        if self.seed == 903:
            return Asked(done=True)
        if self.seed == 905:
            return Asked(question=len(action.word), done=True)  # its bug
        if self.seed == 904:
            return Asked(done=True, reward=float("nan"))
        right = action.word == f"word{self.seed}"
        return Asked(question="Thanks.", done=True, reward=float(right))

    @property
    def state(self) -> State:
        return State()


class Via(BaseModel):
    place: int


class Move(Action):
    direction: Literal["left", "right"]
    steps: int = Field(ge=1, le=3)
    via: tuple[Via | Literal["air"], ...] = ()


class Where(Observation):
    place: int = 0
    goal: int = 0


class Line(Environment):
    """A walk to a goal, whose side the seed decides. Each step costs a little."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.place, self.goal = 0, 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Where:
        self.place, self.goal = 0, int(given.get("goal", 4)) * (1 if (seed or 0) % 2 else -1)
        return Where(place=0, goal=self.goal)

    def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Where:
        self.place += action.steps * (1 if action.direction == "right" else -1)
        done = self.place == self.goal
        return Where(place=self.place, goal=self.goal, done=done, reward=1.0 if done else -0.1)

    @property
    def state(self) -> State:
        return State()


class Listed(Words):
    """Words with tasks of its own, in two splits."""

    WORDS = {"test": ["seven"], "train": ["one", "two", "three"]}  # noqa: RUF012 - a test

    def list_splits(self) -> list[str]:
        return list(self.WORDS)

    def list_tasks(self, split: str) -> list[Any]:
        return [{"id": word} if split == "train" else {"word": word} for word in self.WORDS[split]]

    def num_tasks(self, split: str) -> int:
        return len(self.WORDS[split])

    def get_task(self, split: str, index: int) -> Any:
        return self.list_tasks(split)[index]

    def get_task_range(self, split: str, start: int | None, stop: int | None) -> list[Any]:
        return self.list_tasks(split)[start:stop]

    def reset(  # type: ignore[override]  # a task comes without a seed
        self, split: str, index: int, episode_id: str | None = None, **_: Any
    ) -> Asked:
        self.word = self.WORDS[split][index]
        return Asked(question=f"Say {self.word}.")

    def step(self, action: Said, timeout_s: float | None = None, **_: Any) -> Asked:
        return Asked(question="Thanks.", done=True, reward=float(action.word == self.word))


class Sums(MCPEnvironment):
    """A sum, which is submitted with a tool."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("sums")
        self.seed, self.submitted = 0, ""

        @server.tool()
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @server.tool()
        def submit(answer: str) -> str:
            """Submit the answer."""
            self.submitted = answer
            return "thanks"

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Asked:
        self.seed, self.submitted = seed or 0, ""
        return Asked(question=f"What is {self.seed} + 1? Submit it.")

    async def step_async(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        observation = await super().step_async(action, timeout_s)
        if self.submitted:
            observation.done = True
            observation.reward = float(self.submitted == str(self.seed + 1))
        return observation

    def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Observation:
        # OpenEnv requires this method, for actions that call no tool. There are none here.
        raise NotImplementedError

    @property
    def state(self) -> State:
        return State()


KINDS: dict[str, tuple[type[Environment], type[Action], type[Observation], int]] = {
    "words": (Words, Said, Asked, 16),
    "single": (Words, Said, Asked, 1),
    "line": (Line, Move, Where, 8),
    "listed": (Listed, Said, Asked, 8),
    "sums": (Sums, Action, Observation, 8),
    "walks": (Walks, Action, Observation, SESSIONS),
}


def main() -> None:
    app = FastAPI()
    servers: dict[str, HTTPEnvServer] = {}
    begun: dict[str, list[int]] = {name: [] for name in KINDS}

    @app.get("/counts/{name}")
    def counts(name: str) -> dict[str, int]:
        return {
            "open": servers[name].active_sessions,
            "most": max(begun[name], default=0),
            "begun": len(begun[name]),
        }

    def factory(name: str) -> Callable[[], Environment]:
        def make() -> Environment:
            # OpenEnv creates one before there is a server, to look at it.
            if name in servers:
                begun[name].append(servers[name].active_sessions)
            return KINDS[name][0]()

        make.SUPPORTS_CONCURRENT_SESSIONS = True  # type: ignore[attr-defined]
        return make

    for name, (_, action, observation, sessions) in KINDS.items():
        part = FastAPI()
        servers[name] = HTTPEnvServer(
            factory(name), action, observation, max_concurrent_envs=sessions, env_name=name
        )
        servers[name].register_routes(part)
        app.mount(f"/{name}", part)
    sys.path.insert(0, sys.argv[1])
    app.mount("/template", importlib.import_module("server.app").app)
    listening = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()
