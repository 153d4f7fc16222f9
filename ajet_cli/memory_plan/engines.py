"""The memory of engines, and the tokens whose keys and values it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ajet_cli.memory_plan.parts import CONTEXT_BYTES, GIB, ComponentMemory, MemoryPart, count
from ajet_cli.memory_plan.shapes import BYTES, ModelShape
from ajet_core.errors import ConfigError
from ajet_core.protocol import RunConfig

BATCHED_TOKENS = 8192
"""Most tokens of a pass of a server, as vLLM and SGLang choose it on large GPUs."""
GRAPH_BYTES = GIB
"""Of CUDA graphs. An assumption."""
_LOGIT = 12


@dataclass(frozen=True, slots=True)
class KeyValueRoom:
    """What an engine's cache of keys and values holds.

    :param token_bytes: of one token, on each GPU of a server.
    :param tokens: of one server; 0 or less if the weights alone do not fit.
    :param servers: so many have as much.
    """

    token_bytes: int
    tokens: int
    servers: int

    @property
    def all_tokens(self) -> int:
        """Tokens of all servers."""
        return max(0, self.tokens) * self.servers


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """The memory of an engine, and what its cache holds."""

    memory: ComponentMemory
    room: KeyValueRoom


def engine_memory(
    config: RunConfig, shape: ModelShape, *, gpu_bytes: int, taken: int
) -> EngineMemory:
    """Return what the engine of a run needs.

    :param gpu_bytes: memory of one GPU.
    :param taken: what a trainer on the same GPUs may have of it before the engine starts.
    :raises ConfigError: the memory of this engine is not known.
    """
    name = config.engine.name
    if name not in _ENGINES:
        raise ConfigError(
            f"the memory of the engine {name!r} is not known; known: {', '.join(_ENGINES)}",
            param="engine.name",
        )
    return _ENGINES[name](config, shape, gpu_bytes, taken)


def _vllm(config: RunConfig, shape: ModelShape, gpu_bytes: int, taken: int) -> EngineMemory:
    """Return the memory of vLLM, which takes a fraction of a GPU for everything that it needs."""
    del taken
    settings = config.engine.settings
    fraction = float(settings.get("gpu_memory_utilization", 0.9))
    parallel = int(settings.get("tensor_parallel_size", 1))
    weights = _weights(shape, parallel)
    passes = _passes(shape, parallel, int(settings.get("max_num_seqs", 256)))
    reserved = CONTEXT_BYTES + weights.size + passes.size
    room = int(fraction * gpu_bytes) - reserved
    cache = _cache(shape, parallel, room, f"{fraction:g} x the GPU, less the rest")
    return _engine(config, shape, parallel, (weights, passes, cache))


def _sglang(config: RunConfig, shape: ModelShape, gpu_bytes: int, taken: int) -> EngineMemory:
    """Return the memory of SGLang: weights and cache take a fraction of what is free at its start.

    Whether the trainer's memory is free then depends on which of them is faster, so the cache is
    that of the worse case, and what is used that of the other.
    """
    settings = config.engine.settings
    fraction = float(settings.get("memory_fraction", 0.85))
    parallel = int(settings.get("tensor_parallel_size", 1))
    weights = _weights(shape, parallel)
    passes = _passes(shape, parallel, int(settings.get("max_running_requests", 256)))
    most = int(fraction * gpu_bytes) - weights.size
    least = int(fraction * (gpu_bytes - taken)) - weights.size
    cache = _cache(shape, parallel, most, f"{fraction:g} x the GPU, less the weights, at most")
    engine = _engine(config, shape, parallel, (weights, passes, cache))
    token_bytes = shape.kv_bytes(parallel)
    return EngineMemory(
        engine.memory, KeyValueRoom(token_bytes, least // token_bytes, engine.room.servers)
    )


def _torch(config: RunConfig, shape: ModelShape, gpu_bytes: int, taken: int) -> EngineMemory:
    """Return the memory of the embedded engine, which shares the weights of the trainer `torch`."""
    del gpu_bytes, taken
    settings = config.engine.settings
    context = min(config.model.max_context or shape.positions, shape.positions)
    slots = int(settings.get("max_requests", 64))
    tokens = slots * min(context, int(settings.get("kv_tokens") or context))
    shares = config.trainer.name == "torch" and config.rollout.mode == "sync"
    weights = (
        MemoryPart("weights", 0, "the trainer's own") if shares else _weights(shape, parallel=1)
    )
    room = tokens * shape.kv_bytes()
    cache = _cache(shape, 1, room, f"{slots} slots of {tokens // slots} tokens")
    return _engine(config, shape, 1, (weights, cache))


_ENGINES: Mapping[str, Callable[[RunConfig, ModelShape, int, int], EngineMemory]] = {
    "sglang": _sglang,
    "torch": _torch,
    "vllm": _vllm,
}


def _weights(shape: ModelShape, parallel: int) -> MemoryPart:
    each = BYTES[shape.dtype]
    divided = f" / {parallel}" if parallel > 1 else ""
    return MemoryPart(
        "weights",
        -(-shape.parameters * each // parallel),
        f"{each} B x {shape.parameters:,}{divided}",
    )


def _passes(shape: ModelShape, parallel: int, requests: int) -> MemoryPart:
    """Return what a pass of a server needs: one layer's activations, logits, CUDA graphs."""
    own = BYTES[shape.dtype]
    width = 4 * shape.hidden + 2 * shape.intermediate * shape.active_experts // parallel
    activations = BATCHED_TOKENS * width * own
    logits = requests * shape.vocabulary * _LOGIT
    return MemoryPart(
        "passes",
        activations + logits + GRAPH_BYTES,
        f"{BATCHED_TOKENS} tokens at once, logits of {requests} requests, CUDA graphs; assumed",
    )


def _cache(shape: ModelShape, parallel: int, room: int, text: str) -> MemoryPart:
    return MemoryPart(
        "keys and values", max(0, room), f"{shape.kv_bytes(parallel):,} B a token; {text}"
    )


def _engine(
    config: RunConfig, shape: ModelShape, parallel: int, working: tuple[MemoryPart, ...]
) -> EngineMemory:
    servers = int(config.engine.settings.get("replicas", 1))
    name = config.engine.name
    host: tuple[MemoryPart, ...] = ()
    if config.rollout.engine_sleeps:
        size = servers * shape.parameters * BYTES[shape.dtype]
        host = (MemoryPart("weights of the engine", size, "while it sleeps"),)
    of_each = f" of {parallel} GPUs" if parallel > 1 else ""
    memory = ComponentMemory(
        title=f"{name}, {count(servers, 'server')}{of_each}",
        gpus=servers * parallel,
        resident=(MemoryPart("context", CONTEXT_BYTES, "of CUDA and its libraries; assumed"),),
        working=working,
        host=host,
    )
    token_bytes = shape.kv_bytes(parallel)
    return EngineMemory(memory, KeyValueRoom(token_bytes, working[-1].size // token_bytes, servers))
