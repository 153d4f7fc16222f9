"""Arithmetic in which the result of a row does not depend on the rows computed with it.

Libraries for matrix products choose another order of additions for other shapes, so a token gets
slightly different logits in a large batch than alone. Here every product is divided into products
of one fixed shape, and sums over keys are taken block by block, from the first on. Rows and keys
that pad a block contribute exact zeros. The gradient is computed by ordinary products: it is the
same whenever the same pass is computed.
"""

from __future__ import annotations

import math
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from ajet_core.errors import ConfigError, ModelDirectoryError

ATTENTION = "ajet_exact"
ROWS = 32
"""Rows of a product with a weight. More rows train faster, fewer decode faster."""
QUERIES = 16
KEYS = 128
"""Queries and keys of a product of attention."""
LN_2 = math.log(2)


def check_exact(device: torch.device, threads: int | None) -> None:
    """Check that a component can compute exactly.

    :raises ConfigError: it computes on a GPU, or divides an operation between threads.
    """
    if device.type != "cpu":
        raise ConfigError(
            f"exact: the mode computes on the CPU, not on {device}; set device to cpu in the "
            "settings of engine and trainer, or exact to false",
            param="exact",
        )
    if threads not in {None, 1}:
        raise ConfigError(
            f"exact: with {threads} threads, results depend on how an operation is divided; set "
            "threads to 1, or exact to false",
            param="exact",
        )


def make_exact(module: nn.Module) -> None:
    """Replace the products of a model, in place.

    :raises ConfigError: the model is not in float32.
    :raises ModelDirectoryError: the attention of the model cannot be replaced.
    """
    dtypes = {parameter.dtype for parameter in module.parameters()}
    if dtypes != {torch.float32}:
        raise ConfigError(
            "exact: the mode computes in float32; set model.dtype to float32, or exact to false",
            param="model.dtype",
        )
    AttentionInterface.register(ATTENTION, exact_attention)
    AttentionMaskInterface.register(ATTENTION, eager_mask)
    try:
        module.set_attn_implementation(ATTENTION)  # type: ignore[operator]
    except (ValueError, AttributeError, ImportError) as error:
        raise _refused(module, str(error)) from error
    for part in module.modules():
        if type(part) is nn.Linear:
            part.forward = MethodType(_linear, part)  # type: ignore[method-assign]


@torch.no_grad()
def prove_exact(module: nn.Module, vocab_size: int) -> None:
    """Check that a model gives a token the same logits in passes of other shapes, to the bit.

    :raises ModelDirectoryError: it does not.
    """
    positions = getattr(module.config, "max_position_embeddings", None)
    width = min(2 * KEYS + 3, positions if isinstance(positions, int) else 2 * KEYS + 3)
    ids = (torch.arange(5 * width) * 7919 % vocab_size).view(5, width)
    parts = [
        ids[:rows, :length]
        for rows, length in ((1, width), (3, KEYS), (4, KEYS + 1), (1, 5), (2, 1))
    ]
    try:
        together, *apart = (
            module(input_ids=part, use_cache=False).logits for part in (ids, *parts)
        )
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise _refused(module, str(error)) from error
    for logits in apart:
        if not torch.equal(logits, together[: len(logits), : logits.shape[1]]):
            raise _refused(module, "its logits depend on the size of the batch")


def _refused(module: nn.Module, reason: str) -> ModelDirectoryError:
    return ModelDirectoryError(
        f"exact mode cannot compute {type(module).__name__} ({reason}); set exact to false, or "
        "use another model",
        param="model.path",
    )


def _linear(self: nn.Linear, states: torch.Tensor) -> torch.Tensor:
    """Do what `nn.Linear.forward` does, with products of one shape."""
    flat = states.reshape(-1, states.shape[-1])
    product: torch.Tensor = _Product.apply(flat, self.weight)  # type: ignore[no-untyped-call]
    product = product.view(*states.shape[:-1], len(self.weight))
    return product if self.bias is None else product + self.bias


class _Product(torch.autograd.Function):
    """Multiply rows [M, K] by a weight [N, K] to [M, N]."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        padded = _padded(rows, ROWS, dim=0)
        count, size = len(padded) // ROWS, rows.shape[-1]
        blocks = padded.view(count, ROWS, size)
        product = torch.bmm(blocks, weight.t().expand(count, -1, -1))
        return product.view(count * ROWS, len(weight))[: len(rows)]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        return (
            gradient @ weight if ctx.needs_input_grad[0] else None,
            gradient.t() @ rows if ctx.needs_input_grad[1] else None,
        )


def exact_attention(
    _module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention for transformers.

    The position of a key in `key` decides on its place in the sums, so that it has to be the same
    in all passes.

    :param query: [B, H, Q, D].
    :param key: [B, H or a divisor of it, K, D]; `value` likewise.
    :param attention_mask: [B or 1, 1, Q, K], added to the scores.
    :return: [B, Q, H, D], and None instead of the weights.
    :raises ValueError: the model needs a variant of attention that is not supported.
    """
    unsupported = [
        name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None
    ]
    if unsupported or attention_mask is None:
        raise ValueError(f"attention with {', '.join(unsupported) or 'no mask'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    result: torch.Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        query * (scale / LN_2), key, value, attention_mask
    )
    return result.transpose(1, 2).contiguous(), None


class _Attention(torch.autograd.Function):
    """Attention with weights ``2 ** (query key + mask)``: `torch.exp` is slow where it gives 0.

    The gradient is that of FlashAttention (arXiv:2205.14135).
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        rows = _grouped(query, key.shape[1])
        result, log_sum = _attended(rows, key, value, _masks(mask, rows.shape))
        ctx.save_for_backward(query, key, value, mask, result, log_sum)
        return result.view(query.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, mask, result, log_sum = ctx.saved_tensors
        rows = _grouped(query, key.shape[1])
        of_result = _grouped(gradient, key.shape[1])
        weights = rows @ key.transpose(2, 3)
        weights.add_(_masks(mask, rows.shape)).sub_(log_sum).exp2_()
        of_scores = of_result @ value.transpose(2, 3)
        of_scores.sub_((of_result * result).sum(-1, keepdim=True)).mul_(weights).mul_(LN_2)
        return (
            (of_scores @ key).view(query.shape),
            of_scores.transpose(2, 3) @ rows,
            weights.transpose(2, 3) @ of_result,
            None,
        )


def _grouped(heads: torch.Tensor, groups: int) -> torch.Tensor:
    """Return [B, groups, heads of a group * Q, D] from [B, H, Q, D]."""
    return heads.reshape(heads.shape[0], groups, -1, heads.shape[-1])


def _masks(mask: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return [B or 1, 1, rows, K] of the rows that `_grouped` makes."""
    return mask.repeat(1, 1, shape[2] // mask.shape[2], 1)


def _attended(
    rows: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return results [B, G, R, D], and base-2 logarithms of the sums of weights [B, G, R, 1].

    :param rows: [B, G, R, D].
    """
    batch, groups, count, size = rows.shape
    queries = _padded(rows, QUERIES, dim=2).view(batch * groups, -1, QUERIES, size)
    mask = _padded(mask, KEYS, dim=3, value=torch.finfo(mask.dtype).min)
    parts = [
        _products(queries, part.transpose(1, 2)).view(batch, groups, -1, KEYS)[:, :, :count]
        + mask[..., number * KEYS : (number + 1) * KEYS]
        for number, part in enumerate(_blocks(key))
    ]
    highest = torch.stack([part.amax(-1) for part in parts]).amax(0)[..., None]
    result = torch.zeros_like(rows, memory_format=torch.contiguous_format)
    total = torch.zeros_like(highest)
    for part, values in zip(parts, _blocks(value), strict=True):
        weights = part.sub_(highest).exp2_()
        total += weights.sum(-1, keepdim=True)
        weights = _padded(weights, QUERIES, dim=2).view(batch * groups, -1, QUERIES, KEYS)
        result += _products(weights, values).view(batch, groups, -1, size)[:, :, :count]
    return result.div_(total), highest + total.log2()


def _products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply [N, blocks, I, J] by [N, J, L] to [N * blocks, I, L]."""
    count, blocks = left.shape[:2]
    right = right[:, None].expand(-1, blocks, -1, -1)
    return torch.bmm(
        left.reshape(count * blocks, *left.shape[2:]),
        right.reshape(count * blocks, *right.shape[2:]),
    )


def _blocks(states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Divide keys or values [B, G, K, D] into parts [B * G, KEYS, D]."""
    padded = _padded(states, KEYS, dim=2)
    return torch.split(padded.reshape(-1, *padded.shape[2:]), KEYS, 1)


def _padded(states: torch.Tensor, multiple: int, *, dim: int, value: float = 0.0) -> torch.Tensor:
    """Pad a dimension to a multiple, and return contiguous states."""
    missing = -states.shape[dim] % multiple
    if not missing:
        return states.contiguous()
    return functional.pad(states, [0, 0] * (states.dim() - 1 - dim) + [0, missing], value=value)
