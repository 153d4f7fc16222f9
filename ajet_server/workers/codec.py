"""Convert interface dataclasses to plain msgpack values and back."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from types import UnionType
from typing import Any, TypeVar

from pydantic import TypeAdapter

from ajet_core import __version__
from ajet_core.interfaces import (
    LOOPBACK,
    EngineInfo,
    GenerateChunk,
    GenerateRequest,
    ModelServers,
    SamplingParams,
    TrainerInfo,
)
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_server.workers.delta_end import WeightPlaces

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ComponentPlan:
    """A component for a worker to create: import targets and plain settings.

    :param owner: the component in messages, as `PluginManager.describe` returns it.
    """

    name: str
    target: str
    settings_target: str
    settings: dict[str, Any]
    owner: str = ""

    def __str__(self) -> str:
        return self.owner or f"{self.name!r} ({self.target})"


@dataclass(frozen=True, slots=True)
class BootPlan:
    """The components that a worker hosts, and how to start them.

    :param checkpoint: the directory from which the trainer continues, None for a new run.
    :param channel: the weight channel, if the worker hosts both components: the trainer publishes
        its weights on it before the engine starts, so that the engine need not load any.
    :param servers: the model servers behind the engine.
    :param collective_host: the address on which the trainer listens if it sends weights over the
        network.
    :param weights: where the weights of the channel ``delta`` are.
    :param version: of the server's code.
    """

    run_dir: str
    seed: int
    model: ModelConfig
    algorithm: AlgorithmConfig
    engine: ComponentPlan | None
    trainer: ComponentPlan | None
    checkpoint: str | None
    exact: bool = False
    channel: str | None = None
    policy_version: int = 0
    servers: ModelServers = field(default_factory=ModelServers)
    collective_host: str = LOOPBACK
    weights: WeightPlaces = field(default_factory=WeightPlaces)
    version: str = __version__

    @property
    def components(self) -> BootPlan:
        """The plan without what changes between boots; a worker with an equal one can be reused."""
        servers = replace(self.servers, urls=(), started=None)
        return replace(self, checkpoint=None, policy_version=0, servers=servers)


@dataclass(frozen=True, slots=True)
class BootReport:
    """The components that started; None for one that the worker does not host."""

    engine: EngineInfo | None
    trainer: TrainerInfo | None


@dataclass(frozen=True, slots=True)
class ModelServerUrls:
    """The parameters of `ServingEngine.use_servers`."""

    urls: list[str] | None


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(cls: Any) -> TypeAdapter[Any]:
    if (adapter := _adapters.get(cls)) is None:
        adapter = _adapters[cls] = TypeAdapter(cls)
    return adapter


def to_plain(value: object) -> Any:
    """Convert a dataclass or pydantic model of the interfaces to dicts, lists and scalars."""
    return _adapter(type(value)).dump_python(value, mode="python")


def from_plain(cls: type[T] | UnionType, plain: Any) -> T:
    """Convert the output of `to_plain` back to `cls`.

    :param cls: a type, or a union such as ``BootReport | None``.
    :raises pydantic.ValidationError: `plain` is not valid for `cls`.
    """
    result: T = _adapter(cls).validate_python(plain)
    return result


_SAMPLING_NAMES = [f.name for f in fields(SamplingParams)]
_sampling_values = attrgetter(*_SAMPLING_NAMES)


def pack_request(request: GenerateRequest) -> list[Any]:
    """Convert a request to a flat array: it is sent for every call, so it skips the generic path.

    The prompt is the bytes of an array of native uint32: both processes are on one machine.
    """
    sampling = _sampling_values(request.sampling)
    ids = request.prompt_ids
    prompt = (ids if isinstance(ids, array) else array("I", ids)).tobytes()
    return [
        request.request_id,
        prompt,
        sampling,
        request.stream,
        request.sampled,
        request.traceparent,
    ]


def unpack_request(plain: list[Any]) -> GenerateRequest:
    """Undo `pack_request`."""
    request_id, prompt, values, stream, sampled, traceparent = plain
    prompt_ids = array("I")
    prompt_ids.frombytes(prompt)
    sampling = dict(zip(_SAMPLING_NAMES, values, strict=True))
    sampling["stop_token_ids"] = tuple(sampling["stop_token_ids"])
    sampling["logit_bias"] = tuple(tuple(pair) for pair in sampling["logit_bias"])
    return GenerateRequest(
        request_id, prompt_ids.tolist(), SamplingParams(**sampling), stream, sampled, traceparent
    )


def _pack_sampled_from(sampled_from: list[tuple[float, bytes]]) -> list[Any]:
    """Convert it to logprobs, the distinct sets, and the number of each token's set."""
    numbers: dict[bytes, int] = {}
    for _, kept in sampled_from:
        numbers.setdefault(kept, len(numbers))
    logprobs = [logprob for logprob, _ in sampled_from]
    return [logprobs, list(numbers), [numbers[kept] for _, kept in sampled_from]]


def pack_chunk(chunk: GenerateChunk) -> list[Any]:
    """Convert a chunk to a flat array."""
    return [
        chunk.token_ids,
        chunk.logprobs,
        chunk.policy_version,
        chunk.finish_reason,
        chunk.top_logprobs,
        None if chunk.sampled_from is None else _pack_sampled_from(chunk.sampled_from),
        chunk.cached_tokens,
    ]


def unpack_chunk(plain: list[Any]) -> GenerateChunk:
    """Undo `pack_chunk`."""
    token_ids, logprobs, policy_version, finish_reason, top, sampled_from, cached = plain
    if top is not None:
        top = [[(int(i), float(x)) for i, x in row] for row in top]
    if sampled_from is not None:
        logprobs_of, sets, numbers = sampled_from
        kept = [sets[number] for number in numbers]
        sampled_from = list(zip(logprobs_of, kept, strict=True))
    return GenerateChunk(
        token_ids, logprobs, policy_version, finish_reason, top, sampled_from, cached
    )
