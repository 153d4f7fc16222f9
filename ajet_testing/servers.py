"""Real servers on loopback sockets with scripted components, for tests of routes and runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ajet_core.credentials import ServerTokens
from ajet_core.plugin import PluginManager
from ajet_installation.settings import Settings
from ajet_server.build import build_service
from ajet_server.http.app import create_app
from ajet_server.security.guard import TokenGuard
from ajet_server.serve import bind, http_config
from ajet_server.service import SwarmService
from ajet_testing.plugins import scripted_plugins

SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
STORE = {"name": "sqlite", "settings": {"synchronous": "NORMAL"}}
TOKENS = ServerTokens(control="control-secret", client="client-secret")
CONTROL = {"authorization": f"Bearer {TOKENS.control}"}
CLIENT = {"authorization": f"Bearer {TOKENS.client}"}

Headers = dict[str, str]


def write_scripted_model(directory: Path) -> Path:
    """Create a model directory with a real tokenizer; the scripted engine reads no weights."""
    directory.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        ["user assistant system tool hello there, how are you today?"] * 4,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=SPECIALS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text('{"model_type": "qwen2"}')
    (directory / "model.safetensors").write_bytes(b"")
    return directory


@dataclass(slots=True)
class Running:
    """A running server and an HTTP client for it."""

    service: SwarmService
    http: httpx2.AsyncClient
    model_dir: Path
    run_dir: Path
    url: str

    def config(self, **changes: Any) -> dict[str, Any]:
        """Return a configuration with scripted components; a batch has 2 tasks of 2 episodes.

        Episodes may end without calls, because most tests are about something else.
        """
        rollout = {"allow_no_calls": True, **changes.pop("rollout", {})}
        engine = changes.pop("engine", {})
        trainer = changes.pop("trainer", {})
        return {
            "model": {"path": str(self.model_dir), "renderer": "qwen3"},
            "engine": {"name": changes.pop("engine_name", "scripted"), "settings": engine},
            "trainer": {"name": "scripted", "settings": trainer},
            "batch": {"tasks": 2, "episodes_per_task": 2, "max_aborts_per_task": 2},
            "rollout": rollout,
            "checkpoint_every": 2,
            **changes,
        }

    async def roll(self, **changes: Any) -> None:
        """Configure and start a run, and wait until episodes can be claimed."""
        assert await self.roll_as_it_is(**changes) == "ROLLING"

    async def roll_as_it_is(self, **changes: Any) -> str:
        """Configure and start a run; return its state when the workers are up."""
        (await self.put_run(**changes)).raise_for_status()
        answer = await self.http.post("/v1/run/start", headers=CONTROL, json={"wait_seconds": 60.0})
        assert answer.status_code == 200, answer.text
        state: str = answer.json()["state"]
        return state

    async def put_run(self, **changes: Any) -> httpx2.Response:
        """Configure a run."""
        return await self.http.put("/v1/run", headers=CONTROL, json=self.config(**changes))

    async def claim(self, task: str = "a", **changes: Any) -> dict[str, Any]:
        """Claim an episode."""
        body = {"task_id": task, "wait_seconds": 30.0, **changes}
        answer = await self.http.post("/v1/episodes", headers=CLIENT, json=body)
        assert answer.status_code == 200, answer.text
        grant: dict[str, Any] = answer.json()
        return grant

    async def chat(
        self, grant: dict[str, Any], text: str = "hello", **changes: Any
    ) -> httpx2.Response:
        """Send a chat completion with the episode's key."""
        body = {"model": "any", "messages": [{"role": "user", "content": text}], **changes}
        return await self.http.post("/v1/chat/completions", headers=key(grant), json=body)

    async def end(self, grant: dict[str, Any], reward: float) -> httpx2.Response:
        """End an episode."""
        return await self.http.post(
            f"/v1/episodes/{grant['episode_id']}/end", headers=CLIENT, json={"reward": reward}
        )

    async def episode(self, task: str, reward: float) -> dict[str, Any]:
        """Run a whole episode with one call."""
        grant = await self.claim(task)
        assert (await self.chat(grant, f"hello {task}")).status_code == 200
        assert (await self.end(grant, reward)).status_code == 200
        return grant

    async def batch(self) -> None:
        """Run a whole batch, and wait for its step."""
        step = self.service.coordinator.step
        rewards = {"a": (0.0, 1.0), "b": (1.0, 0.0)}
        for task, both in rewards.items():
            await asyncio.gather(*(self.episode(task, reward) for reward in both))
        await self.service.board.wait_until(
            lambda: self.service.coordinator.step > step or not self.service.coordinator.running
        )


@dataclass(slots=True)
class ServerFactory:
    """Starts servers; a second one on the same run directory simulates a restart."""

    model_dir: Path
    run_dir: Path
    plugins: Callable[[], PluginManager] = scripted_plugins

    @contextlib.asynccontextmanager
    async def running(self, **server: Any) -> AsyncIterator[Running]:
        """Run a server until the context ends, which stops it like a signal.

        :param server: settings of the server, and in ``store``, ``alerts``, ``costs``, ``loggers``,
            ``telemetry`` and ``workers`` those of these sections; by default, a loss of power would
            lose the last writes to the store.
        """
        store = server.pop("store", STORE)
        sections = ("alerts", "costs", "loggers", "telemetry", "workers")
        others = {name: server.pop(name) for name in sections if name in server}
        settings = Settings(
            server={
                "run_dir": self.run_dir,
                "model_roots": [self.model_dir.parent],
                "port": 0,
                **server,
            },
            store=store,
            **others,
        )
        service = build_service(settings, self.plugins())
        await service.open()
        listener = bind(settings.server)
        guard = TokenGuard(TOKENS, service.tokens)
        http_server = uvicorn.Server(http_config(create_app(service, guard), settings.server))
        http_server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
        serving = asyncio.create_task(http_server.serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            async with httpx2.AsyncClient(base_url=url, timeout=60.0) as http:
                yield Running(service, http, self.model_dir, self.run_dir, url)
        finally:
            await service.interrupt()
            http_server.should_exit = True
            await serving
            await service.close()


def key(grant: dict[str, Any]) -> dict[str, str]:
    """Return the header with an episode's key."""
    return {"authorization": f"Bearer {grant['api_key']}"}


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    """Return the error object of an answer."""
    error: dict[str, Any] = json.loads(answer.text)["error"]
    return error


async def new_token(server: Running, name: str, **fields: Any) -> tuple[str, Headers]:
    """Create a token; return its id and the header with its secret."""
    answer = await server.http.post("/v1/tokens", headers=CONTROL, json={"name": name, **fields})
    assert answer.status_code == 200, answer.text
    grant = answer.json()
    return grant["info"]["token_id"], bearer(grant["token"])


async def revoke(server: Running, token_id: str) -> None:
    """Revoke a token."""
    answer = await server.http.delete(f"/v1/tokens/{token_id}", headers=CONTROL)
    assert answer.status_code == 200, answer.text


async def claim_as(
    server: Running, headers: Headers, task: str = "a", **changes: Any
) -> httpx2.Response:
    """Claim an episode with a token."""
    body = {"task_id": task, "wait_seconds": 30.0, **changes}
    return await server.http.post("/v1/episodes", headers=headers, json=body)


def bearer(secret: str) -> Headers:
    """Return the header with a secret."""
    return {"authorization": f"Bearer {secret}"}
