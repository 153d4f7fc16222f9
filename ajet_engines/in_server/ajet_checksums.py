"""Checksums of weights by tensor, which prove that what is served is what was published.

Runs in model servers too, where it is found by itself on the server's path: nothing of agentjet is imported here.

A checksum is of a tensor's values, whatever their order: the sum of ``b * (A * b + B)`` modulo 2**64 over the bits ``b`` of
each value as a float32. A value of +0 adds nothing. So checksums of tensors that a server has joined to one, transposed or
padded with zeros add up, and a value has the same bits in every precision that holds it. One changed bit changes it; a
permutation within one tensor does not.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_log = logging.getLogger("ajet.checksums")

# Odd, without a pattern: 2**64 divided by the golden ratio, and a constant of MurmurHash3.
_A = 0x9E3779B97F4A7C15 - 2**64
_B = 0xFF51AFD7ED558CCD - 2**64
# What fits into a cache is added up several times faster; on a device each part costs a launch.
_PART = {"cpu": 1 << 18}
_PART_ELSEWHERE = 1 << 26

OTHERWISE = "not as loaded"
"""Stands for the checksum of a tensor that is not in memory as it was loaded."""


def checksum(tensor: Any) -> str:
    """16 hexadecimal digits.

    :param tensor: of any shape, dtype and device, of torch.
    """
    return _written(_total(tensor))


def published(tensors: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The checksums that each tensor may have where it is served: as it is, or rounded to half precision."""
    import torch

    def all_of(tensor: Any) -> tuple[str, ...]:
        wide = tensor.dtype in (torch.float32, torch.float64)
        halves = (torch.bfloat16, torch.float16) if wide else ()
        return (checksum(tensor), *(checksum(tensor.to(half)) for half in halves))

    return {name: all_of(tensor) for name, tensor in tensors.items()}


class LoadedWeights:
    """What a server was given to load, and whether it is still what it has in memory.

    Servers join tensors, transpose, split and pack them. What they keep as it came is found out at the first load:
    the tensors of one layer whose checksums add up to those of that layer's parameters. From then on they have to.
    """

    def __init__(self) -> None:
        self._received: dict[str, str] = {}
        self._sums: dict[str, int] = {}
        self._kept: frozenset[str] | None = None

    def noted(self, weights: Iterable[tuple[str, Any]], dtype: Any) -> Iterator[tuple[str, Any]]:
        """The same weights, noted as they are read.

        :param dtype: that the server keeps them in.
        """
        for name, tensor in weights:
            total = _total(tensor)
            self._received[name] = _written(total)
            rounded = tensor.is_floating_point() and tensor.dtype != dtype
            self._sums[name] = _total(tensor.to(dtype)) if rounded else total
            yield name, tensor

    def begin(self) -> None:
        """Forget what was loaded before: all weights are about to come."""
        self._received, self._sums = {}, {}

    @contextmanager
    def noting(self, model: Any, dtype: Any) -> Iterator[None]:
        """Note what `model.load_weights` is given meanwhile.

        :param dtype: that the model keeps its weights in.
        """
        load = model.load_weights
        model.load_weights = lambda weights, *rest, **named: load(
            self.noted(weights, dtype), *rest, **named
        )
        try:
            yield
        finally:
            # The class's own is found again.
            del model.load_weights

    def report(self, parameters: Iterable[tuple[str, Any]]) -> dict[str, str]:
        """The checksum of each tensor that was loaded, `OTHERWISE` if it is not in memory any more.

        :param parameters: of the model, by name; what several names share comes once.
        """
        here = _by_layer((name, _total(tensor)) for name, tensor in parameters)
        loaded = _by_layer(self._sums.items())
        same = frozenset(layer for layer, total in loaded.items() if here.get(layer) == total)
        if self._kept is None and loaded:
            self._kept = same
            if len(same) < len(loaded):
                # A load that went wrong in memory looks the same: with few layers, or none, it is worth a look.
                _log.warning(
                    "%d of %d layers are in memory as they were loaded, and are proven there from now on; the others are "
                    "packed or split, and are proven up to the loader only",
                    len(same),
                    len(loaded),
                )
        lost = (self._kept or frozenset()) - same
        return {
            name: OTHERWISE if _layer(name) in lost else found
            for name, found in self._received.items()
        }


def _by_layer(totals: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: defaultdict[str, int] = defaultdict(int)
    for name, total in totals:
        found[_layer(name)] += total
    return {layer: total % 2**64 for layer, total in found.items()}


def _layer(name: str) -> str:
    """What is around a tensor's module: servers join modules that are beside each other."""
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
