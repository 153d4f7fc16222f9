"""The inference engine: token ids in, token ids with logprobs out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Literal

from ajet_core.errors import EngineError
from ajet_core.interfaces.context import ComponentSettings, WorkerContext
from ajet_core.protocol.run import ModelConfig

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one completion.

    :param max_tokens: sample at most this many tokens, >= 1.
    :param temperature: >= 0; 0 takes the most likely token.
    :param top_p: 0 < top_p <= 1, 1 is off.
    :param top_k: 0 is off.
    :param seed: the same seed, prompt and weights give the same tokens.
    :param stop_token_ids: sampling one of them ends the completion; it is part of the sampled ids.
    :param top_logprobs: also return the logprobs of this many most likely tokens per position.
    :param frequency_penalty: taken off a token's logit for each time it was sampled, before the temperature.
    :param presence_penalty: taken off once if it was sampled at all.
    :param logit_bias: (token id, what is added to its logit) pairs.
    :param grammar: the completion matches it, and ends where it ends: a Lark grammar as ``llguidance`` reads it;
        "" allows anything.

    What tokens are drawn from may differ from the policy by top-p, top-k, penalties, bias and grammar; logprobs are always
    those of the policy at the temperature, which is what is trained.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str = ""

    @property
    def is_penalised(self) -> bool:
        """Whether penalties or a bias change what is drawn from."""
        return bool(self.frequency_penalty or self.presence_penalty or self.logit_bias)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One completion to sample.

    :param prompt_ids: [P], P >= 1.
    :param stream: True asks for chunks as tokens are made; False allows to hold them back to the end.
    :param sampled: 0 <= S < P: so many tokens at the end of the prompt are of the same completion, sampled by an engine that
        could not end it. Penalties count them, a grammar and a seed go on behind them, and ``max_tokens`` is what is left.
    """

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    stream: bool = False
    sampled: int = 0

    def continued(self, token_ids: list[int]) -> GenerateRequest:
        """What is left to do after these tokens [T]; T may be ``max_tokens``, and then there is nothing."""
        if not token_ids:
            return self
        return replace(
            self,
            prompt_ids=self.prompt_ids + token_ids,
            sampling=replace(self.sampling, max_tokens=self.sampling.max_tokens - len(token_ids)),
            sampled=self.sampled + len(token_ids),
        )


@dataclass(frozen=True, slots=True)
class GenerateChunk:
    """The next T >= 0 tokens of a completion, all sampled by the same weights.

    :param token_ids: [T] sampled ids, a stop token included.
    :param logprobs: [T] as `ajet_core.timeline.Call.logprobs` defines them.
    :param policy_version: version of the weights that sampled these tokens.
    :param finish_reason: set in the last chunk, which alone may hold no tokens.
    :param top_logprobs: [T][K] (token id, logprob) pairs, most likely first, when asked for.
    """

    token_ids: list[int]
    logprobs: list[float]
    policy_version: int
    finish_reason: FinishReason | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine can do; the gateway refuses requests that need more.

    :param weight_channels: names of the weight channels it accepts, best first.
    :param max_top_logprobs: the most `SamplingParams.top_logprobs` it answers.
    :param seed: whether `SamplingParams.seed` is honoured.
    :param sleep: whether `sleep` and `wake` free and regain device memory.
    :param penalties: whether the two penalties and `SamplingParams.logit_bias` are honoured.
    :param grammar: whether `SamplingParams.grammar` is.
    :param seals: whether it proves that what it serves is what was published, by checksums (`ajet_engines.seal`) or by a probe
        (`ajet_core.probe`), see `Engine.seal`.
    """

    weight_channels: tuple[str, ...]
    max_top_logprobs: int = 0
    seed: bool = False
    sleep: bool = False
    penalties: bool = False
    grammar: bool = False
    seals: bool = False


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts known once an engine has started.

    :param max_context: most tokens a prompt and its completion may have together.
    :param needs_probe: a server of it reports no checksums, so that weights are proven by `WeightUpdate.probe`.
    """

    max_context: int
    vocab_size: int
    needs_probe: bool = False


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine started (seconds, tokens) and present load (requests).

    :param forward_seconds: wall seconds spent in forward passes and sampling.
    :param prompt_tokens: prompt tokens of all requests.
    :param cached_tokens: those of them that were not computed again.
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
    """A fixed text and what the trainer's weights say of it.

    :param token_ids: [T].
    :param logprobs: [T - 1] of the second token to the last, over the full vocabulary, at temperature 1.
    """

    token_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """Says where the next weights are.

    :param channel: name of a weight channel both sides declared, such as ``in_process`` or
        ``safetensors_dir``.
    :param policy_version: the version these weights are.
    :param location: a key of `WorkerContext.shared`, or a directory, as the channel defines it.
    :param checksums: by the name that a tensor has in files, the checksums that it may have where it is served
        (`ajet_engines.in_server.ajet_checksums`); empty if the trainer does not say, or shares its tensors.
    :param probe: by which weights are proven where there are no checksums to compare (`ajet_core.probe`).
    :param seal_seconds: that checksums and probe took.
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
    """How an engine has proven that what it serves is what was published.

    :param policy_version: of the weights it serves.
    :param proof: ``checksums``, of each tensor; ``shared``, the tensors are the trainer's own; ``probe``, its logprobs of
        a fixed text have changed as the trainer's; ``none``, because nothing could be compared, or the change was too
        small to be told from noise.
    :param tensors: that were compared, on each server.
    :param servers: that have proven it.
    :param seconds: wall seconds that proofs took since the last report.
    :param breaches: a sentence for each server that failed a proof since the last report and was replaced.
    :param change: of the trainer's logprobs of the probe since the last proof, nats; the least of all servers.
    :param noise: by which engine and trainer differ otherwise, nats; the most of all servers, 0 if none was probed.
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
    """What can be asked of an engine that has started, in this process or another.

    All methods run on one asyncio event loop and must not block it. Failures raise
    `ajet_core.errors.EngineError`; a prompt that does not fit raises
    `ajet_core.errors.ContextLengthError`.
    """

    @abstractmethod
    def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Sample one completion, an async generator of chunks whose last has a finish reason.

        Closing the generator cancels the request. Requests that are running when the engine is
        paused or its weights change go on afterwards, with the new weights.
        """

    @abstractmethod
    async def update_weights(self, update: WeightUpdate) -> None:
        """Serve `update`'s weights from the next sampled token on, with no stale cache.

        With the capability `seals`, an update that has checksums or a probe is proven before anything is sampled with it.

        :raises SealError: what would be served is not what was published. Nothing is sampled with it.
        """

    async def seal(self) -> SealReport:
        """How the last `update_weights` was proven. Needs the capability `seals`."""
        raise EngineError(f"{type(self).__name__} cannot prove its weights")

    @abstractmethod
    async def pause(self) -> None:
        """Stop sampling; returns when no forward pass is running. Requests are kept."""

    @abstractmethod
    async def resume(self) -> None:
        """Go on sampling."""

    async def sleep(self) -> None:
        """Free device memory while a colocated trainer works. Needs the capability `sleep`."""
        raise EngineError(f"{type(self).__name__} cannot sleep")

    async def wake(self) -> None:
        """Undo `sleep`."""
        raise EngineError(f"{type(self).__name__} cannot sleep")

    @abstractmethod
    async def stats(self) -> EngineStats:
        """Counters; answering at all says the engine is healthy."""

    async def metrics(self) -> str:
        """What the engine measures beyond `stats`, in the text format of Prometheus; "" if nothing."""
        return ""


class Engine(ServingEngine):
    """An inference engine, which the process that makes it also starts and closes."""

    def __init__(self, settings: ComponentSettings, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    async def start(self, model: ModelConfig) -> EngineInfo:
        """Load `model` and get ready to serve; called once."""

    @abstractmethod
    async def close(self) -> None:
        """Free everything; requests that are running end with finish reason "abort"."""
