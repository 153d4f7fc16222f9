"""An HTTP server for the tiny model, with the routes of vLLM and SGLang that the engine uses."""

from __future__ import annotations

import asyncio
import json
import math
import random
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tiny_model import CONTEXT, END, VOCABULARY, TinyModel


@dataclass
class Sampling:
    """What both APIs ask for, in one form."""

    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stops: list[int]
    ends: bool
    top_logprobs: int


@dataclass
class Step:
    """One sampled token."""

    token: int
    logprob: float
    top: list[tuple[int, float]]
    reason: str | None


@dataclass
class TinyServer:
    """The server, and what it was asked.

    :ivar faults: names of what it does wrong.
    :ivar running: number of requests that it samples for.
    :ivar posted: paths of all POST requests but those that sample.
    :ivar key: what clients must send as bearer token, if anything.
    """

    directory: Path
    faults: set[str] = field(default_factory=set)
    running: int = 0
    posted: list[str] = field(default_factory=list)
    key: str = ""
    url: str = ""

    def __post_init__(self) -> None:
        self.model = TinyModel(self.directory)
        self._rng = random.Random(0)

    def app(self) -> Starlette:
        """Return the routes."""
        posts = {
            "/v1/completions": self.completions,
            "/generate": self.generate,
            "/update_weights_from_disk": self.update_weights_from_disk,
        }
        gets = {"/health": self.health, "/v1/models": self.models, "/server_info": self.info}
        routes = [Route(path, route, methods=["POST"]) for path, route in posts.items()]
        return Starlette(routes=routes + [Route(path, route) for path, route in gets.items()])

    async def health(self, request: Request) -> Response:
        return Response()

    async def models(self, request: Request) -> Response:
        if request.headers.get("authorization", "") != (f"Bearer {self.key}" if self.key else ""):
            return JSONResponse({"error": {"message": "no entry"}}, 401)
        return JSONResponse({"data": [{"id": "tiny", "max_model_len": CONTEXT}]})

    async def info(self, request: Request) -> Response:
        return JSONResponse({"max_req_input_len": CONTEXT})

    async def update_weights_from_disk(self, request: Request) -> Response:
        body = await request.json()
        self.posted.append("/update_weights_from_disk")
        if "refuses weights" in self.faults:
            return JSONResponse({"success": False, "message": "no memory for them"})
        self.model = TinyModel(Path(body["model_path"]))
        return JSONResponse({"success": True, "message": ""})

    async def completions(self, request: Request) -> Response:
        body = await request.json()
        if len(body["prompt"]) >= CONTEXT:
            return JSONResponse({"error": {"message": "maximum context length is 512"}}, 400)
        if "refuses" in self.faults and len(body["prompt"]) > 3:
            return JSONResponse({"error": {"message": "no such request"}}, 400)
        sampling = Sampling(
            body["prompt"],
            body["max_tokens"],
            body["temperature"],
            body.get("top_p", 1.0),
            body.get("top_k", 0),
            body["stop_token_ids"],
            not body["ignore_eos"],
            body["logprobs"],
        )
        ids = body["return_token_ids"] and "text only" not in self.faults
        named = body["return_tokens_as_token_ids"] and "text only" not in self.faults

        def name(token: int) -> str:
            return f"token_id:{token}" if named else chr(33 + token)

        async def events() -> AsyncIterator[str]:
            first = True
            async for step in self.sample(sampling):
                choice: dict[str, Any] = {
                    "index": 0,
                    "text": chr(33 + step.token),
                    "finish_reason": step.reason,
                    "logprobs": {
                        "tokens": [name(step.token)],
                        "token_logprobs": [step.logprob],
                        "top_logprobs": [{name(token): value for token, value in step.top}],
                    },
                }
                if ids:
                    choice["token_ids"] = [step.token]
                if first:
                    longer = [1] if "longer prompt" in self.faults else []
                    choice["prompt_token_ids"] = longer + sampling.prompt
                first = False
                if "no logprobs" in self.faults:
                    choice["logprobs"] = None
                yield _event({"choices": [choice]})
                if "fails" in self.faults and len(sampling.prompt) > 3:
                    yield _event({"error": {"code": 400, "message": "went wrong"}})
            details = {"cached_tokens": 3}
            yield _event({"choices": [], "usage": {"prompt_tokens_details": details}})
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        options = body["sampling_params"]
        sampling = Sampling(
            body["input_ids"],
            options["max_new_tokens"],
            options["temperature"],
            options["top_p"],
            max(options["top_k"], 0),
            [] if options["ignore_eos"] else options["stop_token_ids"],
            not options["ignore_eos"],
            body["top_logprobs_num"],
        )

        async def events() -> AsyncIterator[str]:
            rows: list[list[Any]] = []
            tops: list[list[list[Any]]] = []
            async for step in self.sample(sampling):
                rows.append([step.logprob, step.token, None])
                tops.append([[logprob, token, None] for token, logprob in step.top])
                reason = None if step.reason is None else {"type": step.reason}
                meta = {
                    "finish_reason": reason,
                    "completion_tokens": len(rows),
                    "cached_tokens": 3,
                    "output_token_logprobs": rows[-1:] if "increments" in self.faults else rows,
                    "output_top_logprobs": tops[-1:] if "increments" in self.faults else tops,
                }
                if "no logprobs" in self.faults:
                    del meta["output_token_logprobs"]
                yield _event({"text": "", "meta_info": meta})
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def sample(self, wanted: Sampling) -> AsyncIterator[Step]:
        """Sample token by token, so that other requests and new weights come in between."""
        self.running += 1
        ids = list(wanted.prompt)
        try:
            for left in reversed(range(wanted.max_tokens)):
                await asyncio.sleep(0)
                # As in the servers that are imitated, greedy answers have undivided logprobs.
                divided = "undivided" not in self.faults and wanted.temperature
                logprobs = self.model.logprobs(ids, wanted.temperature if divided else 1.0)
                ranked = sorted(range(VOCABULARY), key=lambda i: -logprobs[i])
                kept = self._kept(wanted, logprobs, ranked)
                weights = [math.exp(logprobs[i] / (wanted.temperature or 1.0)) for i in kept]
                if divided:
                    weights = [math.exp(logprobs[i]) for i in kept]
                (token,) = self._rng.choices(kept, weights)
                if "cuts" in self.faults and len(kept) < VOCABULARY:
                    total = math.log(sum(weights))
                    logprobs = [x - total if i in kept else -1e4 for i, x in enumerate(logprobs)]
                stops = token in wanted.stops or (wanted.ends and token == END)
                if stops and "leaves out stops" in self.faults:
                    return
                reason = "stop" if stops else None if left else "length"
                top = [(i, logprobs[i]) for i in ranked[: wanted.top_logprobs]]
                yield Step(token, logprobs[token], top, reason)
                if reason is not None:
                    return
                ids.append(token)
        finally:
            self.running -= 1

    def _kept(self, wanted: Sampling, logprobs: list[float], ranked: list[int]) -> list[int]:
        if wanted.temperature == 0:
            return ranked[:1]
        kept = ranked[: wanted.top_k or VOCABULARY]
        share, best = 0.0, []
        total = sum(math.exp(logprobs[i]) for i in kept)
        for token in kept:
            best.append(token)
            share += math.exp(logprobs[token]) / total
            if share >= wanted.top_p:
                break
        return best if wanted.top_p < 1 else kept


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


@contextmanager
def served(directory: Path) -> Iterator[TinyServer]:
    """Serve a model on a free port of loopback, in a thread."""
    tiny = TinyServer(directory)
    listening = socket.create_server(("127.0.0.1", 0))
    tiny.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = uvicorn.Config(tiny.app(), log_level="warning", lifespan="off", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield tiny
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        listening.close()
