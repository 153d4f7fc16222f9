"""GridWalk as an environment of OpenEnv with a tool, and a server of it alone.

Usage: `open_walks.py SEED STEPS`: the walks of so many training steps. The server prints its port.
"""

from __future__ import annotations

import socket
import sys
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State

from ajet_testing.sources.learning import walk_names
from ajet_worlds.gridwalk import GridWalk

SESSIONS = 128


class Seen(Observation):
    question: str = ""


class Walks(MCPEnvironment):
    """The walks of GridWalk that a model learns."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    names = tuple(walk_names(seed=0))

    def __init__(self) -> None:
        server = FastMCP("walks")
        self.walk = GridWalk(self.names[0])

        @server.tool()
        def move(direction: Literal["up", "down", "left", "right"]) -> str:
            """Move one cell."""
            return self.walk.move(direction)

        super().__init__(server)

    def list_splits(self) -> list[str]:
        return ["train"]

    def list_tasks(self, split: str) -> list[Any]:
        return [{"id": name} for name in self.names]

    def num_tasks(self, split: str) -> int:
        return len(self.names)

    def get_task(self, split: str, index: int) -> Any:
        return self.list_tasks(split)[index]

    def get_task_range(self, split: str, start: int | None, stop: int | None) -> list[Any]:
        return self.list_tasks(split)[start:stop]

    def reset(self, index: int = 0, episode_id: str | None = None, **_: Any) -> Seen:
        self.walk = GridWalk(self.names[index])
        return Seen(question=self.walk.observation())

    async def step_async(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        observation = await super().step_async(action, timeout_s)
        if getattr(observation, "error", None):
            self.walk.reject()
        observation.done = self.walk.done
        if observation.done:
            observation.reward = self.walk.outcome().reward
        return observation

    def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Observation:
        # OpenEnv requires this method, for actions that call no tool. There are none here.
        raise NotImplementedError

    @property
    def state(self) -> State:
        return State()


def main() -> None:
    seed, steps = map(int, sys.argv[1:])
    Walks.names = tuple(walk_names(seed, steps))
    app = FastAPI()
    HTTPEnvServer(
        Walks, Action, Observation, max_concurrent_envs=SESSIONS, env_name="walks"
    ).register_routes(app)
    listening = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()
