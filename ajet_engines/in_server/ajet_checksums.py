"""Checksums of weights by tensor, which prove that the served weights are the published ones.

This module also runs in model servers, as a top-level module on their path, so it must not import
anything of agentjet.

A checksum depends on a tensor's values but not on their order: it is the sum of ``b * (A * b + B)``
modulo 2**64 over the bits ``b`` of each value as a float32. A value of +0 contributes nothing.
Checksums therefore add up if a server concatenates, transposes or zero-pads tensors, and a value
has the same bits in every precision that can represent it. Changing one bit changes the checksum;
permuting values within a tensor does not.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["OTHERWISE", "LoadedWeights", "checksum", "published"]

_log = logging.getLogger("ajet.checksums")

# Odd, without a pattern: 2**64 divided by the golden ratio, and a constant of MurmurHash3.
_A = 0x9E3779B97F4A7C15 - 2**64
_B = 0xFF51AFD7ED558CCD - 2**64
# Parts that fit into a CPU cache are summed several times faster; on a GPU each part costs a
# launch.
_PART = {"cpu": 1 << 18}
_PART_ELSEWHERE = 1 << 26

OTHERWISE = "not as loaded"
"""Replaces the checksum of a tensor whose content in memory differs from the loaded one."""


def checksum(tensor: Any) -> str:
    """Return the checksum of a tensor as 16 hexadecimal digits.

    :param tensor: a torch tensor of any shape, dtype and device.
    """
    return _written(_total(tensor))


def published(tensors: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the valid checksums of each tensor when served: unchanged, or in half precision."""
    import torch

    def all_of(tensor: Any) -> tuple[str, ...]:
        wide = tensor.dtype in (torch.float32, torch.float64)
        halves = (torch.bfloat16, torch.float16) if wide else ()
        return (checksum(tensor), *(checksum(tensor.to(half)) for half in halves))

    return {name: all_of(tensor) for name, tensor in tensors.items()}


class LoadedWeights:
    """The weights that a server was given to load, compared with those in its memory.

    Servers concatenate, transpose, split and pack tensors. The first load shows which layers are
    kept unchanged: those whose tensors' checksums add up to those of the layer's parameters. From
    then on they must stay so.
    """

    def __init__(self) -> None:
        self._received: dict[str, str] = {}
        self._sums: dict[str, int] = {}
        self._kept: frozenset[str] | None = None

    def noted(self, weights: Iterable[tuple[str, Any]], dtype: Any) -> Iterator[tuple[str, Any]]:
        """Yield the same weights, recording their checksums.

        :param dtype: dtype in which the server keeps them.
        """
        for name, tensor in weights:
            total = _total(tensor)
            self._received[name] = _written(total)
            rounded = tensor.is_floating_point() and tensor.dtype != dtype
            self._sums[name] = _total(tensor.to(dtype)) if rounded else total
            yield name, tensor

    def begin(self) -> None:
        """Forget earlier loads, before all weights are loaded again."""
        self._received, self._sums = {}, {}

    @contextmanager
    def noting(self, model: Any, dtype: Any) -> Iterator[None]:
        """Record the weights passed to `model.load_weights` in the block.

        :param dtype: dtype in which the model keeps its weights.
        """
        load = model.load_weights
        model.load_weights = lambda weights, *rest, **named: load(
            self.noted(weights, dtype), *rest, **named
        )
        try:
            yield
        finally:
            # Uncover the method of the class again.
            del model.load_weights

    def report(self, parameters: Iterable[tuple[str, Any]]) -> dict[str, str]:
        """Return the checksum of each loaded tensor, `OTHERWISE` if memory differs from it.

        :param parameters: parameters of the model by name; shared ones only once.
        """
        here = _by_layer((name, _total(tensor)) for name, tensor in parameters)
        loaded = _by_layer(self._sums.items())
        same = frozenset(layer for layer, total in loaded.items() if here.get(layer) == total)
        if self._kept is None and loaded:
            self._kept = same
            if len(same) < len(loaded):
                # A load that corrupted memory looks the same: if few or no layers match, it is
                # worth a look.
                _log.warning(
                    "%d of %d layers are in memory as they were loaded, and are proven "
                    "there from now on; the others are packed or split, and are proven up "
                    "to the loader only",
                    len(same),
                    len(loaded),
                )
        lost = (self._kept or frozenset()) - same
        return {
            name: OTHERWISE if _layer(name) in lost else received
            for name, received in self._received.items()
        }


def _by_layer(totals: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: defaultdict[str, int] = defaultdict(int)
    for name, total in totals:
        sums[_layer(name)] += total
    return {layer: total % 2**64 for layer, total in sums.items()}


def _layer(name: str) -> str:
    """Return the parent of a tensor's module: servers join sibling modules."""
    path, _, kind = name.rpartition(".")
    return f"{path.rpartition('.')[0]}.{kind}"


def _total(tensor: Any) -> int:
    import torch

    flat = tensor.detach().reshape(-1)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for part in flat.split(_PART.get(flat.device.type, _PART_ELSEWHERE)):
        whole = part.to(torch.float32).view(torch.int32) if part.is_floating_point() else part
        bits = whole.to(torch.int64)
        total += (bits * _A).add_(_B).mul_(bits).sum()
    return int(total)


def _written(total: int) -> str:
    return f"{total % 2**64:016x}"
