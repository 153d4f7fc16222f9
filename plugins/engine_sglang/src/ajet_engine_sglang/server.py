"""What an SGLang server understands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

from ajet_core.errors import ContextLengthError, EngineError, RequestError, UnsupportedError
from ajet_core.interfaces import EngineInfo, EngineStats, GenerateRequest, WeightUpdate
from ajet_core.protocol.run import ModelConfig
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

# Of its context SGLang leaves so many tokens unused, whatever the prompt.
RESERVED = 6
_HOW_TO_FIT = (
    "set model.max_context lower, or give the server more room for keys and values: engine.settings.kv_tokens on a CPU, "
    "engine.settings.memory_fraction on GPUs"
)
# Less than any GET may take, so that it is SGLang which says that it did not get there.
_IDLE_SECONDS = 15
_NO_ENTRY = (401, 403)
# Without the second, weights would be lost by sleeping.
SLEEPS = "--enable-memory-saver --enable-weights-cpu-backup"
_SLEEPS = ("enable_memory_saver", "enable_weights_cpu_backup")
# As in_server/ajet_sglang_scheduler.py has it.
_SHAPING = "ajet_shaping"
# As in_server/ajet_sglang_weights.py has it.
_LOADED = "ajet_loaded"
_LOAD = {"sglang:num_running_reqs": "running", "sglang:num_queue_reqs": "waiting"}


@dataclass(slots=True)
class _Counted:
    """Of what was asked here: SGLang counts a request when it ends."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0


class SglangServer(HttpModelServer):
    """A server of SGLang 0.5.23 or later.

    :param model: its directory, and how long contexts may be.
    :param shapes: it was started as `ajet_sglang_server`, with what penalties, biases and grammars need.
    :param sleeps: it is to be able to sleep.
    """

    kind = "SGLang"

    def __init__(self, http: HttpClient, model: ModelConfig, *, shapes: bool, sleeps: bool) -> None:
        self._model = model
        self._shapes = shapes
        self._sleeps, self._asleep = sleeps, False
        self._counted = _Counted()
        # One for each request that has sampled something and is not over.
        self._begun: set[asyncio.Future[None]] = set()
        # Whoever used it before may have left it paused.
        self._paused = True
        super().__init__(http)

    def member(self) -> SglangMember:
        """Its schedulers."""
        self._member = SglangMember(self.ask)
        return self._member

    async def healthy(self) -> bool:
        """Whether it answers, and computes unless it is paused: SGLang's own probe would wait for the end of that."""
        if not self._paused:
            return await super().healthy()
        try:
            # Its scheduler is asked for that.
            await self.http.get("/server_info")
        except ServerGoneError:
            return False
        except ServerRefusedError as error:
            # `prepare` says so.
            return error.status in _NO_ENTRY
        return True

    async def prepare(self) -> EngineInfo:
        """What it serves.

        :raises EngineError: it was started in a way that this engine cannot use, or the model's context does not fit.
        """
        served = json.loads(await self.get("/server_info"))
        if not served.get("incremental_streaming_output"):
            raise EngineError("start the SGLang server with --incremental-streaming-output")
        # It takes prompts that are shorter than this.
        room = int(served["max_req_input_len"])
        config = model_config(self._model)
        wanted = self._model.max_context or room
        if room < min(wanted, int(config["max_position_embeddings"]) - RESERVED):
            raise EngineError(
                f"the model does not fit: the SGLang server has room for {room} tokens of a prompt and its completion, "
                f"and {wanted} are asked for; {_HOW_TO_FIT}"
            )
        if any(int(served.get(name) or 1) > 1 for name in ("dp_size", "pp_size")):
            raise EngineError(
                "start the SGLang server without --dp-size and --pp-size: weights come to its parts by tensor parallelism "
                "alone; have several servers instead"
            )
        if served.get("preferred_sampling_params"):
            raise EngineError(
                "start the SGLang server without --preferred-sampling-params: requests would be sampled in another way than "
                "they say"
            )
        await self.go_on()
        await self._probe()
        if self._shapes:
            await self.get("/freeze_gc")
        gpu = served["device"] != "cpu"
        self._member.describe(int(served["tp_size"]), gpu=gpu)
        # A CPU has no memory to free, and the routes answer.
        if self._sleeps and gpu and not all(map(served.get, _SLEEPS)):
            raise EngineError(
                f"the SGLang server cannot sleep, as engine.settings.sleep wants: start it with {SLEEPS}"
            )
        return EngineInfo(
            min(wanted, room), int(config["vocab_size"]), needs_probe=not self._shapes
        )

    async def _probe(self) -> None:
        """Look at logprobs of which it is known what they have to be."""
        _, once = await probed(self._sample, PROBE)
        _, twice = await probed(self._sample, replace(PROBE, temperature=2.0))
        if not is_scaled(once, twice):
            raise EngineError(
                "the SGLang server does not give logprobs at the sampling temperature: start it without "
                "SGLANG_RETURN_ORIGINAL_LOGPROB in its environment"
            )
        _, cut = await probed(self._sample, replace(PROBE, top_k=1, top_logprobs=2))
        if not is_whole(cut, once):
            raise EngineError(
                "the SGLang server gives no logprobs of the whole distribution: they are those of what top-k leaves"
            )

    def sample(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        """Sample one completion. Its logprobs are those before top-p and top-k.

        :raises UnsupportedError: penalties, a bias or a grammar, of a server that was not started here.
        """
        if is_shaped(request.sampling) and not self._shapes:
            raise UnsupportedError(
                "an SGLang server that agentjet has not started knows no penalties, logit_bias and grammars: have it "
                "start one, without servers.sglang.urls",
                param="grammar" if request.sampling.grammar else "logit_bias",
            )
        return self._sample(request)

    async def _sample(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        answer = _Answer(request)
        events = self.http.events("/generate", _body(request))
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
                        # A request that was ended while it waited says nothing of it.
                        self._counted.cached_tokens += int(
                            event["meta_info"].get("cached_tokens", 0)
                        )
                    self._counted.sampled_tokens += len(piece.token_ids)
                    if piece.token_ids or piece.finish_reason is not None:
                        yield piece
        except ServerRefusedError as error:
            raise _refusal(error) from error
        finally:
            self._begun.discard(over)
            over.set_result(None)

    async def halt(self) -> None:
        """End all requests; what they have sampled is sent. What was cached is forgotten.

        SGLang's own pause looks once a second whether any are left. So they are ended first, which takes one forward
        pass, and the pause is left with those that were on their way.
        """
        # Those that begin after it was told are not ended by this.
        begun = set(self._begun)
        await self.ask("/abort_request", {"abort_all": True})
        if begun:
            await asyncio.wait(begun)
        self._paused = True
        await self.ask("/pause_generation", {"mode": "abort"})
        # The last answer is sent before the forward pass is quite over. Until then SGLang takes no weights, and would end of
        # being told to sleep; this waits for that.
        await self.get(f"/flush_cache?timeout={_IDLE_SECONDS}")

    async def go_on(self) -> None:
        """Begin requests again."""
        await self.ask("/continue_generation", {})
        self._paused = False

    async def load(self, update: WeightUpdate) -> None:
        """Load a directory, or what is broadcast, into the running model, and forget what was cached.

        :raises WeightsGoneError: nobody broadcasts it; it serves what it did.
        :raises EngineError: it refused.
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
        """What all schedulers say that they have loaded; None of a server that was not started here."""
        if not self._shapes:
            return None
        answer = await self.ask("/weights_checker", {"action": _LOADED})
        return of_all_ranks([rank["checksums"] for rank in answer["ranks"]])

    async def score(self, token_ids: list[int]) -> list[float] | None:
        """As it tells them of a prompt."""
        body = {
            "input_ids": token_ids,
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        await self.go_on()
        answer = await self.ask("/generate", body)
        await self.halt()
        # Of the first token there is none.
        return [float(row[0]) for row in answer["meta_info"]["input_token_logprobs"][1:]]

    async def stats(self) -> EngineStats:
        """Tokens as they arrived here, requests from ``/metrics``."""
        load = await self.counters(_LOAD)
        return EngineStats(
            running=load["running"],
            waiting=load["waiting"],
            prompt_tokens=self._counted.prompt_tokens,
            cached_tokens=self._counted.cached_tokens,
            sampled_tokens=self._counted.sampled_tokens,
        )

    async def sleep(self) -> None:
        """Move the weights to host memory, and forget keys and values."""
        # Also if nobody waits for the answer any more.
        self._asleep = True
        try:
            await self.ask("/release_memory_occupation", {})
        except EngineError:
            self._asleep = False
            raise

    async def wake(self) -> None:
        """Move them back, unless it has come up while others slept: SGLang would end of being told so."""
        if self._asleep:
            await self.ask("/resume_memory_occupation", {})
        self._asleep = False


def _body(request: GenerateRequest) -> dict[str, Any]:
    sampling = request.sampling
    shaping = sampling_overrides(request)
    shaped = {"custom_logit_processor": _SHAPING} if shaping else {}
    return shaped | {
        "input_ids": request.prompt_ids,
        "sampling_params": {
            "max_new_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "stop_token_ids": list(sampling.stop_token_ids),
            # With it SGLang would stop at none of the request's either.
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
    """Reads the events of one request."""

    def __init__(self, request: GenerateRequest) -> None:
        self._stops = request.sampling.stop_token_ids
        self._top = request.sampling.top_logprobs
        self._seen = 0

    def piece(self, event: dict[str, Any]) -> Piece:
        """What is new.

        :raises ServerRefusedError: it could not be computed. SGLang says so as it says that it was told to end it, but with
            the status of an error.
        """
        meta = event["meta_info"]
        reason = meta["finish_reason"] or {}
        if reason.get("type") == "abort" and reason.get("status_code"):
            raise ServerRefusedError(int(reason["status_code"]), str(reason.get("message")))
        # Of a request that was ended while it waited for room, all is told once more.
        fresh = int(meta["completion_tokens"]) - self._seen
        self._seen += fresh
        rows = meta.get("output_token_logprobs") or []
        if fresh > len(rows):
            raise EngineError(f"SGLang told {len(rows)} logprobs of {fresh} tokens")
        rows = rows[len(rows) - fresh :]
        ids = [int(row[1]) for row in rows]
        found = None
        if self._top:
            tops = meta.get("output_top_logprobs") or []
            found = [
                [(int(token), float(logprob)) for logprob, token, *_ in row]
                for row in tops[len(tops) - fresh :]
            ]
        return Piece(ids, [float(row[0]) for row in rows], self._reason(reason, ids), found)

    def _reason(self, reason: dict[str, Any], ids: list[int]) -> Literal["stop", "length"] | None:
        match reason.get("type"):
            case "length":
                return "length"
            # At the model's own end token too, which is none of the request's: it goes on then, as after a halt.
            case "stop" if ids and ids[-1] in self._stops:
                return "stop"
        return None


def _refusal(error: ServerRefusedError) -> Exception:
    """What a refusal of a request means. A failure of the server is one, until somebody has looked at it."""
    if error.status >= 500:
        return ServerGoneError(str(error))
    if "context length" in error.message or "maximum allowed length" in error.message:
        return ContextLengthError(error.message, param="prompt_ids")
    return RequestError(f"SGLang refused the request: {error.message}")
