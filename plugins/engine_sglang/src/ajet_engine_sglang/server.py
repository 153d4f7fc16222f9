"""What an SGLang server understands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prometheus_client.parser import text_string_to_metric_families

from ajet_core.errors import ContextLengthError, EngineError, RequestError
from ajet_core.interfaces import EngineInfo, EngineStats, GenerateRequest, WeightUpdate
from ajet_core.served import HttpClient, ModelServer, Piece, ServerGoneError, ServerRefusedError

# Of the context SGLang leaves so many tokens unused, whatever the prompt.
_RESERVED = 5
_LOAD = {"sglang:num_running_reqs": "running", "sglang:num_queue_reqs": "waiting"}


@dataclass(slots=True)
class _Counted:
    """Of what was asked here: SGLang counts a request when it ends."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0


class SglangServer(ModelServer):
    """A server of SGLang 0.5.23 or later.

    :param model: its directory.
    """

    def __init__(self, http: HttpClient, model: Path) -> None:
        self._http = http
        self._model = model
        self._counted = _Counted()

    async def healthy(self) -> bool:
        """Whether it answers, and its scheduler lives."""
        return await self._http.answers("/health")

    async def prepare(self) -> EngineInfo:
        """What it serves."""
        served = json.loads(await self._get("/server_info"))
        config = json.loads((self._model / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        if not served.get("incremental_streaming_output"):
            raise EngineError("start the SGLang server with --incremental-streaming-output")
        limit = served.get("context_length") or config["max_position_embeddings"]
        return EngineInfo(int(limit) - _RESERVED, int(config["vocab_size"]))

    async def sample(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        """Sample one completion. Its logprobs are those before top-p and top-k."""
        sampling = request.sampling
        events = self._http.events("/generate", _body(request))
        first = True
        try:
            async with aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    if "error" in event:
                        error = event["error"]
                        raise ServerRefusedError(int(error["code"]), str(error["message"]))
                    piece = _piece(event, sampling.stop_token_ids, sampling.top_logprobs)
                    if first:
                        self._counted.prompt_tokens += len(request.prompt_ids)
                        self._counted.cached_tokens += int(event["meta_info"]["cached_tokens"])
                        first = False
                    self._counted.sampled_tokens += len(piece.token_ids)
                    if piece.token_ids or piece.finish_reason is not None:
                        yield piece
        except ServerRefusedError as error:
            raise _refusal(error) from error

    async def halt(self) -> None:
        """End all requests; what they have sampled is sent."""
        await self._ask("/pause_generation", {"mode": "abort"})

    async def go_on(self) -> None:
        """Begin requests again."""
        await self._ask("/continue_generation", {})

    async def load(self, update: WeightUpdate) -> None:
        """Load a directory into the running model, and forget what was cached.

        :raises EngineError: it refused.
        """
        body = {
            "model_path": update.location,
            "weight_version": str(update.policy_version),
            "flush_cache": True,
        }
        await self._ask("/update_weights_from_disk", body)

    async def stats(self) -> EngineStats:
        """Tokens as they arrived here, requests from ``/metrics``."""
        found = dict.fromkeys(_LOAD.values(), 0.0)
        lines = (await self._get("/metrics")).splitlines(keepends=True)
        wanted = "".join(line for line in lines if line.startswith(tuple(_LOAD)))
        for family in text_string_to_metric_families(wanted):
            for sample in family.samples:
                if (name := _LOAD.get(sample.name)) is not None:
                    found[name] += sample.value
        return EngineStats(
            running=int(found["running"]),
            waiting=int(found["waiting"]),
            prompt_tokens=self._counted.prompt_tokens,
            cached_tokens=self._counted.cached_tokens,
            sampled_tokens=self._counted.sampled_tokens,
        )

    async def sleep(self) -> None:
        """Not used: it needs a memory allocator of SGLang's own."""
        raise EngineError("the engine 'sglang' cannot sleep")

    async def wake(self) -> None:
        """Not used."""
        raise EngineError("the engine 'sglang' cannot sleep")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def _ask(self, path: str, body: object) -> Any:
        try:
            return await self._http.post(path, body)
        except ServerRefusedError as error:
            raise EngineError(f"SGLang refused {path}: {error}") from error

    async def _get(self, path: str) -> str:
        try:
            return await self._http.get(path)
        except ServerRefusedError as error:
            raise EngineError(f"SGLang refused {path}: {error}") from error


def _body(request: GenerateRequest) -> dict[str, Any]:
    sampling = request.sampling
    return {
        "input_ids": request.prompt_ids,
        "sampling_params": {
            "max_new_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "stop_token_ids": list(sampling.stop_token_ids),
            "skip_special_tokens": False,
            "no_stop_trim": True,
        },
        "return_logprob": True,
        "top_logprobs_num": sampling.top_logprobs,
        "stream": True,
    }


def _piece(event: dict[str, Any], stops: tuple[int, ...], top: int) -> Piece:
    meta = event["meta_info"]
    rows = meta["output_token_logprobs"]
    ids = [int(row[1]) for row in rows]
    reason: Literal["stop", "length"] | None = None
    match (meta["finish_reason"] or {}).get("type"):
        case "length":
            reason = "length"
        # At the model's own end token too, which is none of the request's: it goes on then, as after a halt.
        case "stop" if ids and ids[-1] in stops:
            reason = "stop"
    found = None
    if top:
        found = [
            [(int(token), float(logprob)) for logprob, token, *_ in row]
            for row in meta["output_top_logprobs"]
        ]
    return Piece(ids, [float(row[0]) for row in rows], reason, found)


def _refusal(error: ServerRefusedError) -> Exception:
    """What a refusal of a request means. A failure of the server is one, until somebody has looked at it."""
    if error.status >= 500:
        return ServerGoneError(str(error))
    if "context length" in error.message:
        return ContextLengthError(error.message, param="prompt_ids")
    return RequestError(f"SGLang refused the request: {error.message}")
