"""A swarm server for tests of agents: real sockets, gateway and store, scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvicorn
from tokenizers import Tokenizer

from agentjet.client import SwarmClient
from ajet_core.credentials import ServerTokens
from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import RunConfig
from ajet_core.timeline import Call
from ajet_installation.settings import Settings
from ajet_server.build import build_service
from ajet_server.http.app import create_app
from ajet_server.security.guard import TokenGuard
from ajet_server.serve import bind, http_config
from ajet_server.service import SwarmService
from ajet_testing.plugins import scripted_plugins
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.tokenizers import write_model

__all__ = ["ScriptedSwarm"]

T = TypeVar("T")

_RENDERER = "qwen3"
_STOP_SECONDS = 30.0


class ScriptedSwarm:
    """A server in a separate thread, with a run that rolls for the length of a ``with`` block.

    Its trainer only changes the version of the weights.

    :param directory: an empty one, for the model's tokenizer and the run.
    :param replies: the model's answers.
    :param checks_grammar: refuse calls whose grammar forbids the model's answer, as in
        `ScriptedEngineSettings`.
    :param max_context: in tokens, of which a text has about half as many as bytes.
    :param run: changes of the run's configuration; a batch has two tasks of two episodes.
    """

    def __init__(
        self,
        directory: Path,
        replies: Sequence[ScriptedReply],
        *,
        checks_grammar: bool = False,
        max_context: int = 32768,
        **run: Any,
    ) -> None:
        self._directory = directory
        model = write_model(directory / "models" / "scripted", _RENDERER)
        (model / "model.safetensors").touch()
        engine = {
            "replies": [reply.model_dump() for reply in replies],
            "max_context": max_context,
            "checks_grammar": checks_grammar,
        }
        self.config = RunConfig.model_validate(
            {
                "model": {"path": str(model), "renderer": _RENDERER},
                # Some frameworks always force a tool call.
                "engine": {"name": "obedient", "settings": {"vocab_size": 1024, **engine}},
                "trainer": {"name": "scripted"},
                "batch": {"tasks": 2, "episodes_per_task": 2},
                **run,
            }
        )
        tokenizer = Path(self.config.model.path) / "tokenizer.json"
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self.tokens = ServerTokens(control="control-secret", client="client-secret")
        self._service: SwarmService | None = None
        self._url = ""
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="scripted-swarm", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed
        with SwarmClient(self.url, self.tokens.control) as control:
            control.sync_train_config(self.config)
            control.start_engine()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_STOP_SECONDS)

    @property
    def url(self) -> str:
        """The server's URL."""
        return self._url

    @property
    def token(self) -> str:
        """The token for clients."""
        return self.tokens.client

    @property
    def paused(self) -> str:
        """Why the run is paused, "" if it is not."""
        return self._service_now.coordinator.paused or ""

    def episodes(self) -> list[EpisodeRecord]:
        """Return all episodes, in the order of their claims."""
        return self._ask(self._service_now.store.episodes())

    def calls(self, episode_id: str) -> list[Call]:
        """Return the recorded calls of an episode, in order."""
        by_episode = self._ask(self._service_now.store.calls([episode_id]))
        return sorted(by_episode.get(episode_id, ()), key=lambda call: call.index)

    def text(self, call: Call) -> str:
        """Return the text of prompt and answer, including special tokens."""
        return self._tokenizer.decode(call.token_ids, skip_special_tokens=False)

    @property
    def _service_now(self) -> SwarmService:
        assert self._service is not None, "it serves inside the with block"
        return self._service

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(question, self._loop).result()

    def _serve(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the block begins
            self._failed = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        settings = Settings(
            server={
                "run_dir": self._directory / "run",
                "model_roots": [self._directory / "models"],
                "port": 0,
            },
            # The records need not survive a loss of power.
            store={"name": "sqlite", "settings": {"synchronous": "NORMAL"}},
        )
        service = build_service(settings, scripted_plugins())
        await service.open()
        listener = bind(settings.server)
        app = create_app(service, TokenGuard(self.tokens, service.tokens))
        server = uvicorn.Server(http_config(app, settings.server))
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
        serving = asyncio.create_task(server.serve([listener]))
        self._service = service
        self._url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._ready.set()
        try:
            await self._stop.wait()
        finally:
            await service.interrupt()
            server.should_exit = True
            await serving
            await service.close()
