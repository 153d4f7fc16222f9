"""Forward passes of a causal LM with the slot cache, and a check of their results."""

from __future__ import annotations

import inspect
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ajet_backend_torch.kv_cache import CacheView, SlotCache
from ajet_core.errors import EngineError, ModelDirectoryError

PROBE_TOKENS = 12
DENSE_SHARE = 0.6
"""From this share of busy slots on, a range of slots is read in place instead of gathered."""


class CachedModel:
    """A causal LM with a slot cache.

    Rows are aligned on the right. So the last column holds every row's newest token, and the model
    computes logits only for that column, with its own scaling.
    """

    def __init__(self, module: nn.Module, slots: int, capacity: int) -> None:
        parameter = next(module.parameters())
        self.module = module
        self.device = parameter.device
        self.dtype = parameter.dtype
        self.cache = SlotCache(slots, capacity)
        self._kwargs: dict[str, object] = {"use_cache": True, "past_key_values": self.cache}
        if "logits_to_keep" in inspect.signature(module.forward).parameters:
            self._kwargs["logits_to_keep"] = 1
        self._columns = torch.arange(capacity, device=self.device)

    def decode(
        self, rows: NDArray[np.int64], ids: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> torch.Tensor:
        """Return logits [n, vocabulary] after one new token in each of n slots.

        :param rows: [n] slots, ascending.
        :param ids: [n] the tokens.
        :param positions: [n] their positions.
        """
        visible = int(positions.max()) + 1
        self.cache.reserve(visible)
        first, last = int(rows[0]), int(rows[-1]) + 1
        if len(rows) < DENSE_SHARE * (last - first):
            inputs = np.stack([ids, positions, rows, rows * self.cache.stride + positions])
            device = self._to_device(inputs)
            return self._forward(
                device[0, :, None], device[1, :, None], device[2], device[3], visible
            )
        # Idle slots in between compute values that are written to the padding position.
        inputs = np.zeros((3, last - first), np.int64)
        inputs[2] = np.arange(first, last) * self.cache.stride + self.cache.padding
        lanes = rows - first
        inputs[0, lanes] = ids
        inputs[1, lanes] = positions
        inputs[2, lanes] += positions - self.cache.padding
        device = self._to_device(inputs)
        logits = self._forward(
            device[0, :, None], device[1, :, None], slice(first, last), device[2], visible
        )
        return logits if len(rows) == last - first else logits[self._to_device(lanes)]

    def prefill(
        self,
        rows: NDArray[np.int64],
        tokens: NDArray[np.int32],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> torch.Tensor:
        """Return logits [n, vocabulary] after several new tokens in each of n slots.

        :param rows: [n] slots.
        :param tokens: [n, at least the computed width] tokens of the slots.
        :param starts: [n] number of tokens already computed.
        :param counts: [n] number of tokens to compute, at least 1.
        """
        width = int(counts.max())
        visible = int((starts + counts).max())
        self.cache.reserve(visible)
        positions = starts[:, None] + np.arange(width) - (width - counts)[:, None]
        real = np.arange(width) >= (width - counts)[:, None]
        positions = np.where(real, positions, 0)
        write = rows[:, None] * self.cache.stride + np.where(real, positions, self.cache.padding)
        ids = np.take_along_axis(tokens, positions, 1).astype(np.int64)
        inputs = self._to_device(np.stack([ids, positions, write]))
        return self._forward(
            inputs[0], inputs[1], self._to_device(rows), inputs[2].reshape(-1), visible
        )

    def _to_device(self, array: NDArray[np.int64]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        rows: slice | torch.Tensor,
        write: torch.Tensor,
        visible: int,
    ) -> torch.Tensor:
        hidden = self._columns[:visible] > positions[:, :, None]
        # An additive mask works with every attention implementation, and is made only once, not in
        # every layer.
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        mask.masked_fill_(hidden, torch.finfo(self.dtype).min)
        self.cache.bind(CacheView(rows=rows, write=write, visible=visible))
        output = self.module(
            input_ids=ids, position_ids=positions, attention_mask=mask[:, None], **self._kwargs
        )
        return cast("torch.Tensor", output.logits[:, -1])


def check_architecture(module: nn.Module, max_context: int) -> None:
    """Refuse models whose layers need more than the keys and values of all previous tokens.

    :raises ModelDirectoryError: the model has recurrent, hybrid or sliding-window layers.
    """
    config = module.config
    name = type(module).__name__
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = set(cast("list[str]", getattr(config, "layer_types", None) or []))
    windowed = "sliding_attention" in kinds or (window is not None and not kinds)
    unknown = kinds - {"full_attention", "sliding_attention"}
    if unknown or getattr(module, "_is_stateful", False):
        raise ModelDirectoryError(
            f"the engine 'torch' cannot serve {name}: its layers "
            f"({', '.join(sorted(unknown)) or 'stateful'}) need more than a plain KV cache; choose "
            "an engine such as vllm",
            param="model.path",
        )
    if windowed and (not isinstance(window, int) or max_context > window):
        raise ModelDirectoryError(
            f"the engine 'torch' cannot serve {name} with a context of {max_context} tokens: its "
            f"sliding-window layers see {window}; set model.max_context to at most {window}, or "
            "choose an engine such as vllm",
            param="model.max_context",
        )


@torch.no_grad()
def probe(module: nn.Module, vocab_size: int, *, exact: bool = False) -> None:
    """Check that the slot cache gives the logprobs of the model's own forward pass.

    The check prefills a row next to a longer one, decodes the rest, and compares.

    :param exact: allow no difference.
    :raises ModelDirectoryError: the forward pass fails, or its logprobs differ.
    """
    name = type(module).__name__
    generator = np.random.Generator(np.random.PCG64(0))
    tokens = generator.integers(0, vocab_size, (3, PROBE_TOKENS), dtype=np.int32)
    prefilled = np.array([PROBE_TOKENS // 2, PROBE_TOKENS - 1])
    try:
        cached = CachedModel(module, slots=3, capacity=PROBE_TOKENS)
        cached.prefill(np.array([0, 2]), tokens[[0, 2]], np.array([0, 0]), prefilled)
        for position in range(int(prefilled[0]), PROBE_TOKENS):
            logits = cached.decode(
                np.array([0]),
                tokens[0, position : position + 1].astype(np.int64),
                np.array([position]),
            )
        plain = module(
            input_ids=torch.from_numpy(tokens[:1].astype(np.int64)).to(cached.device),
            use_cache=False,
        ).logits[:, -1]
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        raise ModelDirectoryError(
            f"the engine 'torch' cannot serve {name}: its forward pass does not work with a slot "
            f"KV cache and an explicit mask ({type(error).__name__}: {error}); choose an engine "
            "such as vllm",
            param="model.path",
        ) from error
    if plain.shape[-1] != vocab_size:
        raise ModelDirectoryError(
            f"the engine 'torch' cannot serve {name}: it has {plain.shape[-1]} logits for "
            f"{vocab_size} token ids",
            param="model.path",
        )
    if not torch.isfinite(plain).all():
        raise EngineError(f"{name} computes logits that are not finite: its weights are damaged")
    gap = (torch.log_softmax(logits.float(), -1) - torch.log_softmax(plain.float(), -1)).abs().max()
    allowed = 0.0 if exact else 1e-3 if cached.dtype == torch.float32 else 0.5
    if not float(gap) <= allowed:
        raise ModelDirectoryError(
            f"the engine 'torch' cannot serve {name}: with the slot KV cache its logprobs differ "
            f"by {float(gap):.3g} from its own forward pass; choose an engine such as vllm",
            param="model.path",
        )
