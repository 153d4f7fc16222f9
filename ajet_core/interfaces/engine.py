"""The inference engine: token ids in, token ids with logprobs out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal

from ajet_core.errors import EngineError
from ajet_core.interfaces.context import SettingsT_co, WorkerContext
from ajet_core.protocol.run import ModelConfig

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters for sampling one completion.

    :param max_tokens: sample at most this many tokens, >= 1.
    :param temperature: >= 0; 0 means greedy.
    :param top_p: 0 < top_p <= 1; 1 disables it.
    :param top_k: 0 disables it.
    :param min_p: smallest probability of a kept token relative to the likeliest one; 0 disables it.
    :param seed: the same seed, prompt and weights give the same tokens.
    :param stop_token_ids: sampling one of them ends the completion; it is part of the sampled ids.
    :param top_logprobs: also return the logprobs of this many most likely tokens per position.
    :param frequency_penalty: subtracted from a token's logit per sample, before the temperature.
    :param presence_penalty: subtracted once if the token was sampled at all.
    :param logit_bias: pairs of a token id and the number added to its logit.
    :param grammar: a Lark grammar in the syntax of ``llguidance``; the completion matches it and
        ends when it is complete. "" allows anything.
    :param sampled_from: also return what each token was sampled from.

    Cuts, penalties, bias and grammar change the distribution that tokens are sampled from. Logprobs
    are always those of the policy at the temperature.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str = ""
    sampled_from: bool = False

    @property
    def is_penalised(self) -> bool:
        """Whether penalties or a bias change the sampling distribution."""
        return bool(self.frequency_penalty or self.presence_penalty or self.logit_bias)

    @property
    def samples_otherwise(self) -> bool:
        """Whether tokens are sampled, but not from the policy itself."""
        return self.temperature > 0 and bool(
            self.top_p < 1 or self.top_k or self.min_p or self.grammar or self.is_penalised
        )


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A request to sample one completion.

    :param prompt_ids: [P], P >= 1; a list in a worker.
    :param stream: return chunks as tokens are sampled; without it, all may come at the end.
    :param sampled: 0 <= S < P: the number of tokens at the end of the prompt that belong to the
        same completion, sampled by an engine that could not finish it. Penalties count them, a
        grammar and a seed continue after them, and ``max_tokens`` counts those that remain.
    :param traceparent: header of that name for model servers, "" for none.
    """

    request_id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    stream: bool = False
    sampled: int = 0
    traceparent: str = ""

    def continued(self, token_ids: list[int]) -> GenerateRequest:
        """Return the rest of the request after these tokens [T], with T <= ``max_tokens``."""
        if not token_ids:
            return self
        return replace(
            self,
            prompt_ids=[*self.prompt_ids, *token_ids],
            sampling=replace(self.sampling, max_tokens=self.sampling.max_tokens - len(token_ids)),
            sampled=self.sampled + len(token_ids),
        )


@dataclass(frozen=True, slots=True)
class GenerateChunk:
    """The next T >= 0 tokens of a completion, all sampled by the same weights.

    :param token_ids: [T] sampled ids, including a stop token.
    :param logprobs: [T] as defined for `ajet_core.timeline.Call.logprobs`.
    :param policy_version: version of the weights that sampled these tokens.
    :param finish_reason: set in the last chunk, which may have no tokens; all others have some.
    :param top_logprobs: [T][K] pairs of token id and logprob, most likely first, if requested.
    :param sampled_from: [T] each token's log-probability under the distribution that it was sampled
        from, and the tokens this kept, as in `ajet_core.timeline.SampledFrom`, b"" for all; only if
        requested and if it is not the policy's own.
    :param cached_tokens: prompt tokens read from a cache, in one chunk; None in others.
    """

    token_ids: list[int]
    logprobs: list[float]
    policy_version: int
    finish_reason: FinishReason | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None
    sampled_from: list[tuple[float, bytes]] | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """Features of an engine; the gateway refuses requests that need others.

    :param weight_channels: names of the accepted weight channels, best first.
    :param max_top_logprobs: the maximum of `SamplingParams.top_logprobs`.
    :param seed: whether `SamplingParams.seed` is supported.
    :param min_p: whether `SamplingParams.min_p` is supported.
    :param sleep: whether `sleep` and `wake` free and regain device memory.
    :param penalties: whether the two penalties and `SamplingParams.logit_bias` are supported.
    :param grammar: whether `SamplingParams.grammar` is supported.
    :param exact: whether the engine supports `WorkerContext.exact`.
    :param sampled_from: whether `SamplingParams.sampled_from` is supported.
    :param seals: whether the engine proves that it serves the published weights, by checksums
        (`ajet_engines.seal`) or a probe (`ajet_engines.probe`); see `Engine.seal`.
    """

    weight_channels: tuple[str, ...]
    max_top_logprobs: int = 0
    seed: bool = False
    min_p: bool = False
    sleep: bool = False
    penalties: bool = False
    grammar: bool = False
    exact: bool = False
    sampled_from: bool = False
    seals: bool = False


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Properties of a started engine.

    :param max_context: maximum number of tokens of a prompt and its completion together.
    :param needs_probe: a server reports no checksums: `WeightUpdate.probe` proves its weights.
    """

    max_context: int
    vocab_size: int
    needs_probe: bool = False


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine started (seconds, tokens) and current load (requests).

    :param forward_seconds: wall seconds spent in forward passes and sampling.
    :param prompt_tokens: prompt tokens of all requests.
    :param cached_tokens: prompt tokens that were read from a cache instead of computed.
    """

    running: int = 0
    waiting: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    forward_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Probe:
    """A fixed text with its logprobs under the trainer's weights.

    :param token_ids: [T].
    :param logprobs: [T - 1] of the second to the last token, full vocabulary, temperature 1.
    """

    token_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """The location of new weights.

    :param channel: a weight channel that both sides declared, such as ``in_process``.
    :param policy_version: the version of these weights.
    :param location: a key of `WorkerContext.shared`, or a directory, as the channel defines it.
    :param checksums: by the name that a tensor has in files, the checksums that it may have where
        it is served (`ajet_engines.in_server.ajet_checksums`); empty if the trainer does not
        provide them or shares its tensors.
    :param probe: proves the weights where there are no checksums to compare (`ajet_engines.probe`).
    :param seal_seconds: seconds that checksums and probe took.
    """

    channel: str
    policy_version: int
    location: str
    metadata: dict[str, str] = field(default_factory=dict)
    checksums: dict[str, tuple[str, ...]] = field(default_factory=dict)
    probe: Probe | None = None
    seal_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SealReport:
    """The proof that an engine serves the published weights.

    :param policy_version: version of the served weights.
    :param proof: ``checksums`` of each tensor; ``shared`` if the tensors are the trainer's;
        ``probe`` if the engine's logprobs of a fixed text changed as the trainer's did; ``none`` if
        nothing could be compared, or the change was too small to be distinguished from noise.
    :param tensors: the number of tensors compared on each server.
    :param servers: the number of servers that have proven their weights.
    :param seconds: wall seconds that proofs took since the last report.
    :param breaches: a sentence for each server that failed a proof since then and was replaced.
    :param change: of the trainer's logprobs of the probe since the last proof, in nats; minimum.
    :param noise: other differences between engine and trainer, in nats; maximum, 0 if none.
    """

    policy_version: int
    proof: Literal["checksums", "shared", "probe", "none"] = "none"
    tensors: int = 0
    servers: int = 0
    seconds: float = 0.0
    breaches: tuple[str, ...] = ()
    change: float = 0.0
    noise: float = 0.0


class ServingEngine(ABC):
    """The interface of a started engine, in this process or another.

    All methods run on one asyncio event loop and must not block it. Failures raise
    `ajet_core.errors.EngineError`; a prompt that does not fit raises
    `ajet_core.errors.ContextLengthError`.
    """

    @abstractmethod
    def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Sample one completion, as an async generator of chunks; the last one has a finish reason.

        Closing the generator cancels the request. Requests that are running when the engine is
        paused or its weights change continue afterwards, with the new weights.
        """

    @abstractmethod
    async def update_weights(self, update: WeightUpdate) -> None:
        """Serve the weights of `update` from the next sampled token on, without stale caches.

        With the capability `seals`, the weights of an update that has checksums or a probe are
        proven before any token is sampled with them.

        :raises SealError: the loaded weights are not the published ones, and sample no token.
        """

    async def seal(self) -> SealReport:
        """Return the proof of the last `update_weights`. Needs the capability `seals`."""
        raise EngineError(f"{type(self).__name__} cannot prove its weights")

    @abstractmethod
    async def pause(self) -> None:
        """Stop sampling; returns when no forward pass is running. Requests are kept."""

    @abstractmethod
    async def resume(self) -> None:
        """Continue sampling."""

    async def sleep(self) -> None:
        """Free device memory while a colocated trainer works. Needs the capability `sleep`."""
        raise EngineError(f"{type(self).__name__} cannot sleep")

    async def wake(self) -> None:
        """Undo `sleep`."""
        raise EngineError(f"{type(self).__name__} cannot sleep")

    async def use_servers(self, urls: Sequence[str] | None) -> dict[str, str]:  # noqa: ARG002
        """Use these model servers besides those that the engine started; None changes nothing.

        :return: by name or URL of each server "up", "starting", or why it was given up.
        """
        raise EngineError(f"{type(self).__name__} has no model servers")

    @abstractmethod
    async def stats(self) -> EngineStats:
        """Return counters. An engine that answers at all is healthy."""

    async def metrics(self) -> str:
        """Return further metrics in the text format of Prometheus, or "" if there are none."""
        return ""


class Engine(ServingEngine, Generic[SettingsT_co]):
    """An inference engine, which is started and closed by the process that creates it."""

    def __init__(self, settings: SettingsT_co, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    async def start(self, model: ModelConfig) -> EngineInfo:
        """Load `model` and prepare to serve it; called once."""

    @abstractmethod
    async def close(self) -> None:
        """Free all resources; running requests end with finish reason "abort"."""
