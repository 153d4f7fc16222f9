"""Client of one vLLM server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ajet_core.errors import ContextLengthError, EngineError, RequestError, UnsupportedError
from ajet_core.interfaces import (
    EngineInfo,
    EngineStats,
    GenerateRequest,
    SamplingParams,
    WeightUpdate,
)
from ajet_core.protocol import ModelConfig
from ajet_engine_vllm.group import VllmMember
from ajet_engine_vllm.settings import VllmEngineSettings
from ajet_engine_vllm.version import check_version
from ajet_engines.collective import CHANNEL as COLLECTIVE
from ajet_engines.served import (
    HttpClient,
    HttpModelServer,
    Piece,
    ServerGoneError,
    ServerRefusedError,
)
from ajet_engines.served.launching import SHARED_IN_SERVER, model_config
from ajet_engines.served.probing import PROBE, PROBED_IDS, is_scaled, is_whole, probed
from ajet_engines.served.sealing import of_all_ranks
from ajet_engines.shaping import is_shaped, sampling_overrides

SERVED_NAME = "agentjet"
WORKER_EXTENSION = "ajet_vllm_worker.WorkerExtension"
LOGITS_PROCESSOR = "ajet_vllm_worker:ShapedLogits"
IN_SERVER = Path(__file__).with_name("in_server")
HOW_TO_START = (
    "start it with VLLM_SERVER_DEV_MODE=1, VLLM_USE_V2_MODEL_RUNNER=0 and "
    f"PYTHONPATH={IN_SERVER}:{SHARED_IN_SERVER} in its environment and the arguments "
    f"--served-model-name {SERVED_NAME} --worker-extension-cls {WORKER_EXTENSION} "
    f"--logits-processors {LOGITS_PROCESSOR} --logprobs-mode processed_logprobs --max-logprobs 20 "
    "--generation-config vllm --skip-tokenizer-init --enable-prompt-tokens-details"
)
# The first chunk is sent at once and the last at the end. Requests that do not stream need no
# others.
_ALL_TOKENS = 1 << 30
_PREFIX = "token_id:"
_COUNTERS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:prefix_cache_hits_total": "cached_tokens",
    "vllm:generation_tokens_total": "sampled_tokens",
}
# Larger than the difference of any two logits.
_DECIDING = 1e4


class VllmServer(HttpModelServer):
    """A vLLM server of a version that `check_version` accepts.

    :param model: the served model.
    :param options: settings of the engine.
    """

    kind = "vLLM"

    def __init__(self, http: HttpClient, model: ModelConfig, options: VllmEngineSettings) -> None:
        self._model = model
        self._options = options
        self._has_tokenizer = Path(model.path, "tokenizer.json").is_file()
        self._cuts = self._shapes = self._holds = False
        super().__init__(http)

    def member(self) -> VllmMember:
        """Return the server's workers as receivers of weights."""
        self._member = VllmMember(self._rpc)
        return self._member

    async def prepare(self) -> EngineInfo:
        """Check the server and return what it serves.

        :raises EngineError: it is too old, or was started in a way that this engine cannot use.
        """
        check_version(str(json.loads(await self.get("/version"))["version"]))
        (served,) = json.loads(await self.get("/v1/models"))["data"][:1]
        if served["id"] != SERVED_NAME:
            raise EngineError(f"the vLLM server is not set up for agentjet: {HOW_TO_START}")
        vocabulary = int(model_config(self._model)["vocab_size"])
        info = EngineInfo(int(served["max_model_len"]), vocabulary)
        try:
            await self.http.post("/resume")
        except ServerRefusedError as error:
            raise EngineError(
                f"the vLLM server does not allow changes of its weights ({error}): {HOW_TO_START}"
            ) from error
        can = await self._rpc("ajet_report_policy_logprobs", {})
        if self._options.sleep and not all(one["sleeps"] for one in can):
            raise EngineError(
                "the vLLM server cannot sleep, but engine.settings.sleep is set: start it "
                "with --enable-sleep-mode too"
            )
        await self._member.prepare()
        await self._probe()
        return info

    async def _probe(self) -> None:
        """Check that logprobs follow the temperature, and which options leave them whole."""
        _, once = await self._probed(PROBE)
        _, twice = await self._probed(replace(PROBE, temperature=2.0))
        if not is_scaled(once, twice):
            raise EngineError(
                "the vLLM server does not return logprobs at the sampling temperature: "
                f"{HOW_TO_START}"
            )
        top, cut = await self._probed(replace(PROBE, top_k=1, top_logprobs=2))
        self._cuts = is_whole(cut, once)
        # Without the bias another token would be the most likely one; the logprobs must ignore the
        # bias.
        unlikely = PROBED_IDS[0] if top != PROBED_IDS[0] else PROBED_IDS[1]
        shaped = replace(PROBE, temperature=0.0, logit_bias=((unlikely, _DECIDING),))
        chosen, same = await self._probed(shaped)
        self._shapes = chosen == unlikely and is_whole(same, once)
        if self._shapes and self._has_tokenizer:
            # The server may use another model directory, or one without a tokenizer.
            held = replace(PROBE, grammar=f"start: <[{unlikely}]>", stop_token_ids=(top,))
            chosen, _ = await self._probed(held)
            self._holds = chosen == unlikely

    async def _probed(self, sampling: SamplingParams) -> tuple[int, list[float]]:
        return await probed(self._sample, sampling)

    def sample(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        """Sample one completion.

        :raises UnsupportedError: the request has top-p, top-k, penalties, a bias or a grammar, and
            the server was not started for it or reports logprobs of a truncated distribution.
        """
        sampling = request.sampling
        if is_shaped(sampling) and not self._shapes:
            raise UnsupportedError(
                "this vLLM server does not support penalties, logit_bias and grammars: "
                f"{HOW_TO_START}",
                param="grammar" if sampling.grammar else "logit_bias",
            )
        if sampling.grammar and not self._holds:
            raise UnsupportedError(
                "this vLLM server does not support grammars: start it with the model's "
                "directory, which has its tokenizer.json",
                param="grammar",
            )
        if sampling.temperature > 0 and not self._cuts and (sampling.top_p < 1 or sampling.top_k):
            raise UnsupportedError(
                "this vLLM server does not return logprobs of the whole distribution "
                "together with top_p or top_k: leave them out",
                param="top_p" if sampling.top_p < 1 else "top_k",
            )
        return self._sample(request)

    async def _sample(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        events = self.http.events("/v1/completions", self._body(request), request.traceparent)
        last: Piece | None = None
        try:
            async with aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    if "error" in event:
                        error = event["error"]
                        raise ServerRefusedError(int(error["code"]), str(error["message"]))
                    if last is not None:
                        yield replace(last, cached_tokens=_cached(event))
                        last = None
                    for choice in event["choices"]:
                        piece = _piece(choice, request.sampling.top_logprobs)
                        if piece.finish_reason is not None:
                            # The number of cached tokens follows.
                            last = piece
                        # A request that is aborted between two tokens sends an event without
                        # tokens.
                        elif piece.token_ids:
                            yield piece
                if last is not None:
                    yield last
        except ServerRefusedError as error:
            raise _refusal(error) from error

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        sampling = request.sampling
        shaping = sampling_overrides(request)
        return {
            "model": SERVED_NAME,
            "prompt": list(request.prompt_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": None if sampling.seed is None else _seed(sampling.seed, request.sampled),
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": sampling.top_logprobs,
            # The logprobs then name tokens by their ids. vLLM's option for ids alone would also
            # return the prompt.
            "return_tokens_as_token_ids": True,
            "ignore_eos": True,
            "skip_special_tokens": False,
            "vllm_xargs": {"ajet_shaping": shaping} if shaping else None,
            "stream": True,
            "stream_options": {"include_usage": True},
            "stream_interval": self._options.chunk_tokens if request.stream else _ALL_TOKENS,
        }

    async def halt(self) -> None:
        """Abort all requests; when this returns, their outputs are on the way."""
        await self.ask("/pause", params={"mode": "abort"})

    async def go_on(self) -> None:
        """Accept requests again."""
        await self.ask("/resume")

    async def load(self, update: WeightUpdate) -> None:
        """Load a directory or a broadcast into the running model, and empty the prefix cache.

        :raises WeightsGoneError: no process broadcasts the weights; the server keeps the previous
            ones.
        :raises EngineError: loading failed, and it is unknown which weights the server has.
        """
        if update.channel == COLLECTIVE:
            await self.receiver.receive(update)
        else:
            await self._rpc("ajet_reload_weights", {"path": update.location})
        emptied = await self.ask("/reset_prefix_cache")
        if not emptied["success"]:
            raise EngineError("the prefix cache could not be emptied after the weights had changed")
        version = {"new_version": str(update.policy_version)}
        await self.ask("/update_weight_version", version)

    async def checksums(self) -> dict[str, str] | None:
        """Return the checksums that all workers loaded."""
        return of_all_ranks(await self._rpc("ajet_loaded_weights", {}))

    async def stats(self) -> EngineStats:
        """Return counts from ``/metrics``."""
        return EngineStats(**await self.counters(_COUNTERS))

    async def sleep(self) -> None:
        """Move the weights to host memory, and discard keys and values."""
        await self.ask("/sleep", params={"level": "1"})

    async def wake(self) -> None:
        """Move the weights back."""
        await self.ask("/wake_up")

    async def _rpc(self, method: str, arguments: dict[str, Any]) -> list[Any]:
        """Call a method of all workers and return their answers."""
        answer = await self.ask("/collective_rpc", {"method": method, "kwargs": arguments})
        results: list[Any] = answer["results"]
        return results


def _piece(choice: dict[str, Any], top: int) -> Piece:
    logprobs = choice["logprobs"]
    reason: Literal["stop", "length"] | None = None
    # "abort" means that the server was halted, which does not end the request.
    if choice["finish_reason"] in ("stop", "length"):
        reason = choice["finish_reason"]
    return Piece(
        token_ids=[_id(token) for token in logprobs["tokens"]],
        logprobs=logprobs["token_logprobs"],
        finish_reason=reason,
        top_logprobs=[_most_likely(row, top) for row in logprobs["top_logprobs"]] if top else None,
    )


def _cached(event: dict[str, Any]) -> int | None:
    """Return the cached tokens of a prompt; None if the server does not report them."""
    details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
    return details.get("cached_tokens")


def _most_likely(row: dict[str, float], top: int) -> list[tuple[int, float]]:
    """Return the `top` most likely tokens; vLLM also lists a less likely sampled token."""
    pairs = [(_id(token), logprob) for token, logprob in row.items()]
    return sorted(pairs, key=lambda pair: -pair[1])[:top]


def _id(token: str) -> int:
    return int(token.removeprefix(_PREFIX))


def _seed(seed: int, sampled: int) -> int:
    """Map any integer to a 63-bit seed, because vLLM takes -1 for none.

    A continued request gets another seed than the one that it started with.
    """
    text = f"{seed} {sampled}" if sampled else str(seed)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _refusal(error: ServerRefusedError) -> Exception:
    """Translate a refusal of a request; a server error counts as a gone server until checked."""
    if error.status >= 500:
        return ServerGoneError(str(error))
    if "context length" in error.message:
        return ContextLengthError(error.message, param="prompt_ids")
    return RequestError(f"vLLM refused the request: {error.message}")
