"""Client of one SGLang server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

from ajet_core.errors import ContextLengthError, EngineError, RequestError, UnsupportedError
from ajet_core.interfaces import EngineInfo, EngineStats, GenerateRequest, WeightUpdate
from ajet_core.protocol import ModelConfig
from ajet_engine_sglang.group import SglangMember
from ajet_engines.collective import CHANNEL as COLLECTIVE
from ajet_engines.served import (
    HttpClient,
    HttpModelServer,
    Piece,
    ServerGoneError,
    ServerRefusedError,
)
from ajet_engines.served.launching import model_config
from ajet_engines.served.probing import PROBE, is_scaled, is_whole, probed
from ajet_engines.served.sealing import of_all_ranks
from ajet_engines.shaping import is_shaped, sampling_overrides

# SGLang leaves this many tokens of its context unused, whatever the prompt.
RESERVED = 6
_HOW_TO_FIT = (
    "lower model.max_context, or give the server more memory for keys and values: "
    "engine.settings.kv_tokens on a CPU, engine.settings.memory_fraction on GPUs"
)
# Shorter than the time limit of a GET, so that SGLang itself reports that it is not idle yet.
_IDLE_SECONDS = 15
_NO_ENTRY = (401, 403)
# Without the second argument, sleeping would lose the weights.
SLEEPS = "--enable-memory-saver --enable-weights-cpu-backup"
_SLEEPS = ("enable_memory_saver", "enable_weights_cpu_backup")
# Must equal `PROCESSOR` in in_server/ajet_sglang_scheduler.py.
_SHAPING = "ajet_shaping"
# Must equal `LOADED` in in_server/ajet_sglang_weights.py.
_LOADED = "ajet_loaded"
_LOAD = {"sglang:num_running_reqs": "running", "sglang:num_queue_reqs": "waiting"}


@dataclass(slots=True)
class _Counted:
    """Token counts of this client's requests; SGLang itself counts a request only when it ends."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0


class SglangServer(HttpModelServer):
    """A server of SGLang 0.5.23 or later.

    :param model: directory and context limit of the model.
    :param shapes: whether it was started as `ajet_sglang_server`, with support for penalties,
        biases and grammars.
    :param sleeps: whether it must be able to sleep.
    """

    kind = "SGLang"

    def __init__(self, http: HttpClient, model: ModelConfig, *, shapes: bool, sleeps: bool) -> None:
        self._model = model
        self._shapes = shapes
        self._sleeps, self._asleep = sleeps, False
        self._counted = _Counted()
        # One future for each request that has sampled a token and has not ended.
        self._begun: set[asyncio.Future[None]] = set()
        # An earlier client may have left it paused.
        self._paused = True
        super().__init__(http)

    def member(self) -> SglangMember:
        """Return the server's schedulers as receivers of weights."""
        self._member = SglangMember(self.ask)
        return self._member

    async def healthy(self) -> bool:
        """Return whether the server answers and, unless it is paused, computes.

        SGLang's own probe would wait for the end of a pause.
        """
        if not self._paused:
            return await super().healthy()
        try:
            # This route asks the scheduler.
            await self.http.get("/server_info")
        except ServerGoneError:
            return False
        except ServerRefusedError as error:
            # `prepare` reports this error.
            return error.status in _NO_ENTRY
        return True

    async def prepare(self) -> EngineInfo:
        """Check the server and return what it serves.

        :raises EngineError: it was started in a way that this engine cannot use, or the model's
            context does not fit.
        """
        served = json.loads(await self.get("/server_info"))
        if not served.get("incremental_streaming_output"):
            raise EngineError("start the SGLang server with --incremental-streaming-output")
        # The server accepts only prompts that are shorter than this.
        room = int(served["max_req_input_len"])
        config = model_config(self._model)
        wanted = self._model.max_context or room
        if room < min(wanted, int(config["max_position_embeddings"]) - RESERVED):
            raise EngineError(
                f"the model does not fit: the SGLang server has room for {room} tokens of a "
                f"prompt and its completion, but {wanted} are required; {_HOW_TO_FIT}"
            )
        if any(int(served.get(name) or 1) > 1 for name in ("dp_size", "pp_size")):
            raise EngineError(
                "start the SGLang server without --dp-size and --pp-size: its parts can "
                "receive weights by tensor parallelism only; use several servers instead"
            )
        if served.get("preferred_sampling_params"):
            raise EngineError(
                "start the SGLang server without --preferred-sampling-params, which would "
                "override the sampling parameters of requests"
            )
        await self.go_on()
        await self._probe()
        if self._shapes:
            await self.get("/freeze_gc")
        gpu = served["device"] != "cpu"
        self._member.describe(int(served["tp_size"]), gpu=gpu)
        # A CPU has no GPU memory to free, and the routes still answer.
        if self._sleeps and gpu and not all(map(served.get, _SLEEPS)):
            raise EngineError(
                "the SGLang server cannot sleep, but engine.settings.sleep is set: start it "
                f"with {SLEEPS}"
            )
        return EngineInfo(
            min(wanted, room), int(config["vocab_size"]), needs_probe=not self._shapes
        )

    async def _probe(self) -> None:
        """Check that logprobs follow the temperature and cover the whole distribution."""
        _, once = await probed(self._sample, PROBE)
        _, twice = await probed(self._sample, replace(PROBE, temperature=2.0))
        if not is_scaled(once, twice):
            raise EngineError(
                "the SGLang server does not return logprobs at the sampling temperature: "
                "start it without SGLANG_RETURN_ORIGINAL_LOGPROB in its environment"
            )
        _, cut = await probed(self._sample, replace(PROBE, top_k=1, top_logprobs=2))
        if not is_whole(cut, once):
            raise EngineError(
                "the SGLang server returns no logprobs of the whole distribution, only "
                "those after top-k"
            )

    def sample(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        """Sample one completion. Its logprobs are those before top-p and top-k.

        :raises UnsupportedError: the request has penalties, a bias or a grammar, and agentjet did
            not start the server.
        """
        if is_shaped(request.sampling) and not self._shapes:
            raise UnsupportedError(
                "an SGLang server that agentjet has not started does not support penalties, "
                "logit_bias and grammars: let agentjet start one, without "
                "servers.sglang.urls",
                param="grammar" if request.sampling.grammar else "logit_bias",
            )
        return self._sample(request)

    async def _sample(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        answer = _Answer(request)
        events = self.http.events("/generate", _body(request), request.traceparent)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    if "error" in event:
                        error = event["error"]
                        raise ServerRefusedError(int(error["code"]), str(error["message"]))
                    piece = answer.piece(event)
                    if over not in self._begun:
                        self._begun.add(over)
                        self._counted.prompt_tokens += len(request.prompt_ids)
                        # A request that was aborted while it waited does not report cached tokens.
                        cached = event["meta_info"].get("cached_tokens")
                        self._counted.cached_tokens += cached or 0
                        piece = replace(piece, cached_tokens=cached)
                    self._counted.sampled_tokens += len(piece.token_ids)
                    if piece.token_ids or piece.finish_reason is not None:
                        yield piece
        except ServerRefusedError as error:
            raise _refusal(error) from error
        finally:
            self._begun.discard(over)
            over.set_result(None)

    async def halt(self) -> None:
        """Abort all requests, sending what they have sampled, and flush the cache.

        SGLang's own pause checks only once a second whether requests are left. So requests are
        aborted first, which takes one forward pass, and the pause then covers only those that have
        just arrived.
        """
        # The abort does not affect requests that start after the server received it.
        begun = set(self._begun)
        await self.ask("/abort_request", {"abort_all": True})
        if begun:
            await asyncio.wait(begun)
        self._paused = True
        await self.ask("/pause_generation", {"mode": "abort"})
        # The last answer is sent before the forward pass ends. Until then SGLang cannot load
        # weights, and a request to sleep would crash it. Flushing the cache waits for the end.
        await self.get(f"/flush_cache?timeout={_IDLE_SECONDS}")

    async def go_on(self) -> None:
        """Accept requests again."""
        await self.ask("/continue_generation", {})
        self._paused = False

    async def load(self, update: WeightUpdate) -> None:
        """Load a directory or a broadcast into the running model, and flush the cache.

        :raises WeightsGoneError: no process broadcasts the weights; the server keeps the previous
            ones.
        :raises EngineError: the server refused.
        """
        if update.channel == COLLECTIVE:
            await self.receiver.receive(update)
            await self.ask("/update_weight_version", {"new_version": str(update.policy_version)})
            return
        body = {
            "model_path": update.location,
            "weight_version": str(update.policy_version),
            "flush_cache": True,
        }
        await self.ask("/update_weights_from_disk", body)

    async def checksums(self) -> dict[str, str] | None:
        """Return the checksums of what all schedulers loaded.

        None if agentjet did not start the server.
        """
        if not self._shapes:
            return None
        answer = await self.ask("/weights_checker", {"action": _LOADED})
        return of_all_ranks([rank["checksums"] for rank in answer["ranks"]])

    async def score(self, token_ids: list[int]) -> list[float] | None:
        """Return the logprobs of a prompt's tokens after the first."""
        body = {
            "input_ids": token_ids,
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        await self.go_on()
        answer = await self.ask("/generate", body)
        await self.halt()
        # The first token has no logprob.
        return [float(row[0]) for row in answer["meta_info"]["input_token_logprobs"][1:]]

    async def stats(self) -> EngineStats:
        """Return token counts of this client, and request counts from ``/metrics``."""
        load = await self.counters(_LOAD)
        return EngineStats(
            running=load["running"],
            waiting=load["waiting"],
            prompt_tokens=self._counted.prompt_tokens,
            cached_tokens=self._counted.cached_tokens,
            sampled_tokens=self._counted.sampled_tokens,
        )

    async def sleep(self) -> None:
        """Move the weights to host memory, and discard keys and values."""
        # Set before the request, in case it is cancelled.
        self._asleep = True
        try:
            await self.ask("/release_memory_occupation", {})
        except EngineError:
            self._asleep = False
            raise

    async def wake(self) -> None:
        """Move the weights back, unless the server started while others slept: it would crash."""
        if self._asleep:
            await self.ask("/resume_memory_occupation", {})
        self._asleep = False


def _body(request: GenerateRequest) -> dict[str, Any]:
    sampling = request.sampling
    shaping = sampling_overrides(request)
    shaped = {"custom_logit_processor": _SHAPING} if shaping else {}
    return shaped | {
        "input_ids": list(request.prompt_ids),
        "sampling_params": {
            "max_new_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "stop_token_ids": list(sampling.stop_token_ids),
            # With ignore_eos, SGLang would also ignore the request's stop tokens.
            "ignore_eos": not sampling.stop_token_ids,
            "skip_special_tokens": False,
            "no_stop_trim": True,
            "custom_params": {_SHAPING: shaping} if shaping else None,
        },
        "return_logprob": True,
        "top_logprobs_num": sampling.top_logprobs,
        "stream": True,
    }


class _Answer:
    """Parser of the events of one request."""

    def __init__(self, request: GenerateRequest) -> None:
        self._stops = request.sampling.stop_token_ids
        self._top = request.sampling.top_logprobs
        self._seen = 0

    def piece(self, event: dict[str, Any]) -> Piece:
        """Return the new tokens of an event.

        :raises ServerRefusedError: the request failed. SGLang reports this as an abort, but with
            the status of an error.
        """
        meta = event["meta_info"]
        reason = meta["finish_reason"] or {}
        if reason.get("type") == "abort" and reason.get("status_code"):
            raise ServerRefusedError(int(reason["status_code"]), str(reason.get("message")))
        # A request that was aborted while it waited for room reports all its tokens again.
        fresh = int(meta["completion_tokens"]) - self._seen
        self._seen += fresh
        rows = meta.get("output_token_logprobs") or []
        if fresh > len(rows):
            raise EngineError(f"SGLang returned {len(rows)} logprobs for {fresh} tokens")
        rows = rows[len(rows) - fresh :]
        ids = [int(row[1]) for row in rows]
        top_logprobs = None
        if self._top:
            tops = meta.get("output_top_logprobs") or []
            top_logprobs = [
                [(int(token), float(logprob)) for logprob, token, *_ in row]
                for row in tops[len(tops) - fresh :]
            ]
        return Piece(ids, [float(row[0]) for row in rows], self._reason(reason, ids), top_logprobs)

    def _reason(self, reason: dict[str, Any], ids: list[int]) -> Literal["stop", "length"] | None:
        match reason.get("type"):
            case "length":
                return "length"
            # SGLang also stops at the model's own end token. If the request does not have it as a
            # stop token, the request continues, as after a halt.
            case "stop" if ids and ids[-1] in self._stops:
                return "stop"
        return None


def _refusal(error: ServerRefusedError) -> Exception:
    """Translate a refusal of a request; a server error counts as a gone server until checked."""
    if error.status >= 500:
        return ServerGoneError(str(error))
    if "context length" in error.message or "maximum allowed length" in error.message:
        return ContextLengthError(error.message, param="prompt_ids")
    return RequestError(f"SGLang refused the request: {error.message}")
