"""The memory of trainers.

Bytes of a trained parameter follow from what the trainers keep: weights, gradients and AdamW's two
moments in float32, 16 in all, as in mixed-precision training (Rajbhandari et al. 2020, ZeRO,
arXiv:1910.02054, section 3.1). FSDP2 divides them over all processes (ZeRO stage 3, section 5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ajet_cli.memory_plan.parts import CONTEXT_BYTES, ComponentMemory, MemoryPart
from ajet_cli.memory_plan.shapes import BYTES, ModelShape
from ajet_core.errors import ConfigError
from ajet_core.protocol import RunConfig

MOST_TOKENS = 16384
"""Of a micro-batch without ``algorithm.token_budget``, as the trainers choose it,"""
MOST_LOGITS = 2**30
"""and at most so many logits, but where they are computed in chunks of"""
CHUNK_LOGITS = 2**26
START = "start"
"""The name of host memory that is needed only while processes start."""
_WIDE = 4
_MOMENTS = 8


def trainer_memory(config: RunConfig, shape: ModelShape) -> ComponentMemory:
    """Return what the trainer of a run needs.

    :raises ConfigError: the memory of this trainer is not known.
    """
    name = config.trainer.name
    if name not in _TRAINERS:
        raise ConfigError(
            f"the memory of the trainer {name!r} is not known; known: {', '.join(_TRAINERS)}",
            param="trainer.name",
        )
    return _TRAINERS[name](config, shape)


def longest_sequence(config: RunConfig, shape: ModelShape) -> int:
    """Return the tokens of the longest sequence that a run can train."""
    longest = min(config.model.max_context or shape.positions, shape.positions)
    limit = config.timelines.max_tokens
    return longest if limit is None else min(longest, limit)


def _verl(config: RunConfig, shape: ModelShape) -> ComponentMemory:
    settings = config.trainer.settings
    gpus = int(settings.get("workers_per_node", 1))
    workers = gpus * int(settings.get("nodes", 1))
    own = settings.get("verl", {})
    keeps = own.get("actor_rollout_ref.actor.fsdp_config.reshard_after_forward") is False
    # verl's frozen weights are float32, too.
    state = _sharded(shape, config, workers, frozen=_WIDE)
    host = _copies(config, shape)
    moved: tuple[MemoryPart, ...] = ()
    if settings.get("offload", False):
        moved, state = state, ()
        size = sum(part.size for part in moved) * gpus
        host.append(MemoryPart("weights and optimiser", size, "between steps (offload)"))
    if config.algorithm.kl_coef > 0 and config.model.lora is None:
        size = shape.parameters * BYTES[shape.dtype]
        host.append(MemoryPart("reference model", size, "read from host memory"))
    return ComponentMemory(
        title=f"verl, FSDP2 over {workers} workers" if workers > 1 else "verl, one worker",
        gpus=gpus,
        resident=(_context(), *state),
        working=(
            *moved,
            _gradients(config, shape, workers),
            *_gathered(shape, wraps_embedding=True, keeps=keeps),
            *_pass(config, shape),
        ),
        host=tuple(host),
    )


def _trl(config: RunConfig, shape: ModelShape) -> ComponentMemory:
    settings = config.trainer.settings
    gpus = int(settings.get("processes", 1))
    distribution = settings.get("distribution", "ddp") if gpus > 1 else "ddp"
    frozen = BYTES[shape.dtype]
    host = _copies(config, shape)
    read = _WIDE if config.model.lora is None else frozen
    text = f"{gpus} x {read} B x {shape.parameters:,}: each process reads the model"
    host.append(MemoryPart(START, gpus * shape.parameters * read, text))
    working: tuple[MemoryPart, ...]
    if distribution == "ddp":
        state = _sharded(shape, config, 1, frozen=frozen)
        working = (_gradients(config, shape, 1), *_autocast(config, shape))
        if gpus > 1:
            size = _trained(config, shape) * _WIDE
            working += (MemoryPart("buckets", size, "gradients that DDP averages"),)
    elif distribution == "fsdp":
        own = settings.get("fsdp", {})
        state = _sharded(shape, config, gpus, frozen=frozen)
        working = (
            _gradients(config, shape, gpus),
            *_gathered(
                shape,
                wraps_embedding=False,
                keeps=own.get("reshard_after_forward") is False,
            ),
        )
        if own.get("cpu_offload", False):
            size = (sum(part.size for part in state) + working[0].size) * gpus
            host.append(MemoryPart("weights and optimiser", size, "always (cpu_offload)"))
            state, working = (), working[1:]
    else:
        own = settings.get("deepspeed", {})
        state, working = _zero(config, shape, gpus, own)
        if own.get("offload_optimizer", False):
            size = _trained(config, shape) * (_WIDE + _MOMENTS)
            host.append(MemoryPart("optimiser", size, "always (offload_optimizer)"))
    if config.algorithm.kl_coef > 0 and config.model.lora is None:
        share = gpus if distribution == "fsdp" else 1
        size = shape.parameters * _WIDE // share
        state += (MemoryPart("reference model", size, f"4 B x parameters / {share}"),)
    return ComponentMemory(
        title=f"{config.trainer.name}, {distribution} over {gpus} processes"
        if gpus > 1
        else f"{config.trainer.name}, one process",
        gpus=gpus,
        resident=(_context(), *state),
        working=(*working, *_pass(config, shape)),
        host=tuple(host),
    )


def _torch(config: RunConfig, shape: ModelShape) -> ComponentMemory:
    settings = config.trainer.settings
    wide = settings.get("master_dtype", "float32") == "float32"
    own = BYTES[shape.dtype]
    trained = _trained(config, shape)
    number = _WIDE if wide or config.model.lora is not None else own
    state = [_plain("weights", shape.parameters, own, 1)]
    if config.model.lora is not None:
        state.append(_plain("adapters", trained, _WIDE, 1))
    elif number != own:
        state.append(_plain("float32 weights", trained, _WIDE, 1))
    state.append(_plain("optimiser", trained, 2 * number, 1))
    if config.algorithm.kl_coef > 0 and config.model.lora is None:
        state.append(_plain("reference model", shape.parameters, own, 1))
    gradients = number if number == own else number + own
    return ComponentMemory(
        title="torch, one process",
        gpus=1,
        resident=(_context(), *state),
        working=(
            _plain("gradients", trained, gradients, 1),
            *_pass(config, shape, divides_logits=True),
        ),
        host=tuple(_copies(config, shape)),
    )


_TRAINERS: Mapping[str, Callable[[RunConfig, ModelShape], ComponentMemory]] = {
    "torch": _torch,
    "trl": _trl,
    "trl_sft": _trl,
    "verl": _verl,
}


def _context() -> MemoryPart:
    return MemoryPart("context", CONTEXT_BYTES, "of CUDA and its libraries; assumed")


def _trained(config: RunConfig, shape: ModelShape) -> int:
    lora = config.model.lora
    return shape.parameters if lora is None else shape.lora_parameters(lora.rank)


def _plain(name: str, parameters: int, each: int, share: int) -> MemoryPart:
    divided = f" / {share}" if share > 1 else ""
    text = f"{each} B x {parameters:,}{divided}"
    return MemoryPart(name, -(-parameters * each // share), text)


def _sharded(
    shape: ModelShape, config: RunConfig, share: int, *, frozen: int
) -> tuple[MemoryPart, ...]:
    """Return weights and optimiser, divided over processes.

    :param frozen: bytes of a weight that is not trained.
    """
    trained = _trained(config, shape)
    if config.model.lora is None:
        weights: tuple[MemoryPart, ...] = (_plain("weights", trained, _WIDE, share),)
    else:
        weights = (
            _plain("frozen weights", shape.parameters, frozen, share),
            _plain("adapters", trained, _WIDE, share),
        )
    return (*weights, _plain("optimiser", trained, _MOMENTS, share))


def _gradients(config: RunConfig, shape: ModelShape, share: int) -> MemoryPart:
    return _plain("gradients", _trained(config, shape), _WIDE, share)


def _gathered(
    shape: ModelShape, *, wraps_embedding: bool, keeps: bool = False
) -> tuple[MemoryPart, ...]:
    """Return what FSDP2 gathers.

    A unit is a layer. The root unit has what no other unit has: it stays gathered, with its
    gradient, until all layers have had theirs. Of layers there are the one that is computed, the
    next one, and a gradient. Gradients are in float32 as well while they are averaged.

    :param wraps_embedding: whether an input embedding of its own is a unit.
    :param keeps: whether layers stay gathered from the forward to the backward pass.
    """
    own = BYTES[shape.dtype]
    apart = wraps_embedding and not shape.tied
    root = shape.embedding_parameters * (1 if shape.tied or apart else 2)
    layer = shape.layer_parameters
    units = [(root, _WIDE), (layer, 3 * own + _WIDE)]
    if apart:
        units.append((shape.embedding_parameters, 2 * own + _WIDE))
    unit, each = max(units, key=lambda item: item[0] * item[1])
    text = f"{2 * own} B x {root:,} (root) + {each} B x {unit:,} (a unit)"
    parts = [MemoryPart("gathered units", 2 * own * root + each * unit, text)]
    if keeps:
        parts.append(_plain("gathered weights", shape.parameters, own, 1))
    return tuple(parts)


def _autocast(config: RunConfig, shape: ModelShape) -> tuple[MemoryPart, ...]:
    """Return the copies of float32 weights that autocast makes for a pass in lower precision."""
    if config.model.lora is not None or BYTES[shape.dtype] == _WIDE:
        return ()
    return (_plain("weights of a pass", shape.parameters, BYTES[shape.dtype], 1),)


def _zero(
    config: RunConfig, shape: ModelShape, gpus: int, own: Mapping[str, Any]
) -> tuple[tuple[MemoryPart, ...], tuple[MemoryPart, ...]]:
    """Return what DeepSpeed keeps, and what it needs for a step."""
    trained, dtype = _trained(config, shape), BYTES[shape.dtype]
    third = own.get("zero_stage", 2) == 3
    share = gpus if third else 1
    state: list[MemoryPart] = []
    if not own.get("offload_param", False):
        state.append(_plain("weights", shape.parameters, dtype, share))
    if not own.get("offload_optimizer", False):
        state.append(_plain("optimiser", trained, _WIDE + _MOMENTS, gpus))
    working = [_plain("gradients", trained, _WIDE, gpus)]
    if third:
        working += _gathered(shape, wraps_embedding=False)
    return tuple(state), tuple(working)


def _pass(
    config: RunConfig, shape: ModelShape, *, divides_logits: bool = False
) -> tuple[MemoryPart, ...]:
    """Return activations and logits of a micro-batch.

    A micro-batch has at least one sequence, except with trainers that divide sequences.
    """
    longest = longest_sequence(config, shape)
    tokens = config.algorithm.token_budget or (
        MOST_TOKENS if divides_logits else min(MOST_TOKENS, MOST_LOGITS // shape.vocabulary)
    )
    if not divides_logits:
        tokens = max(tokens, longest)
    layer = activation_bytes(shape)
    own = BYTES[shape.dtype]
    if config.trainer.settings.get("gradient_checkpointing", False):
        kept = shape.layers * shape.hidden * own
        each, text = kept + layer, f"{kept:,} + {layer:,} B x {tokens} tokens (recomputed)"
    else:
        each = shape.layers * layer
        text = f"{shape.layers} x {layer:,} B x {tokens} tokens"
    places = min(tokens, CHUNK_LOGITS // shape.vocabulary) if divides_logits else tokens
    logit = own + 2 * _WIDE
    return (
        MemoryPart("activations", each * tokens, text),
        MemoryPart(
            "logits",
            places * shape.vocabulary * logit,
            f"{logit} B x {shape.vocabulary} x {places} tokens",
        ),
    )


def activation_bytes(shape: ModelShape) -> int:
    """Return the bytes that one layer keeps of a token for its backward pass.

    Counted from the operations of transformers' decoder layer, as Korthikanti et al. 2022
    (arXiv:2205.05198, section 4.1) count those of GPT. With fused attention nothing depends on the
    square of the length. In bfloat16, with h the hidden size, q and k the widths of queries and
    keys, and i that of the MLP:

    - two norms: 16 h (each keeps its input in float32, the normalised and the weighted output)
    - attention: 8 q + 8 k (queries and keys before and after rotation, values, output)
    - gated MLP: 8 i (both inputs of the product, the activation, the product)
    """
    own = BYTES[shape.dtype]
    norms = 16 * shape.hidden
    attention = 4 * own * (shape.query_width + shape.key_width)
    mlp = 4 * own * shape.intermediate * shape.active_experts
    routed = 2 * own * shape.hidden * shape.active_experts if shape.experts > 1 else 0
    return norms + attention + mlp + routed


def _copies(config: RunConfig, shape: ModelShape) -> list[MemoryPart]:
    """Return the copies of weights and optimiser in host memory."""
    trained = _trained(config, shape)
    each = _WIDE + _MOMENTS
    text = f"{each} B x {trained:,} trained parameters"
    copies = [MemoryPart("checkpoint", trained * each, f"{text}, while one is written")]
    if config.algorithm.minibatches * config.algorithm.epochs > 1:
        copies.append(MemoryPart("snapshot", trained * each, f"{text}, to undo a refused step"))
    return copies
