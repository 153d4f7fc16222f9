"""Updates that an engine must not serve: their directories differ from what was published."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, get_args

from ajet_core.interfaces import WeightUpdate
from ajet_engines.in_server.ajet_checksums import published

__all__ = ["PLANTED", "Planted", "planted", "sealed"]

Planted = Literal["stale", "swapped", "half_loaded"]
PLANTED: tuple[Planted, ...] = get_args(Planted)
_FILE = "model.safetensors"


def sealed(update: WeightUpdate) -> WeightUpdate:
    """Add the checksums of the directory's tensors to an update on ``safetensors_dir``."""
    return replace(update, checksums=published(_tensors(update)))


def planted(
    fault: Planted, update: WeightUpdate, before: WeightUpdate, directory: Path
) -> WeightUpdate:
    """Return `update` with its checksums, but a directory with the weights after a fault.

    :param fault: ``stale``: the previous weights; ``swapped``: two tensors of the same shape are
        exchanged; ``half_loaded``: every other tensor is from the previous weights.
    :param before: an update with other weights of the same model.
    :param directory: the directory to create.
    """
    right, old = _tensors(update), _tensors(before)
    wrong = dict(right)
    if fault == "stale":
        wrong = old
    elif fault == "swapped":
        first, second = next(
            (a, b)
            for a, b in combinations(sorted(right), 2)
            if right[a].shape == right[b].shape and not right[a].equal(right[b])
        )
        wrong[first], wrong[second] = right[second], right[first]
    else:
        wrong |= {name: old[name] for name in sorted(old)[::2]}
    shutil.copytree(update.location, directory)
    _write(wrong, directory / _FILE)
    return replace(sealed(update), location=str(directory))


def _tensors(update: WeightUpdate) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(Path(update.location) / _FILE))


def _write(tensors: dict[str, Any], file: Path) -> None:
    from safetensors.torch import save_file

    save_file({k: v.contiguous() for k, v in tensors.items()}, file, metadata={"format": "pt"})
