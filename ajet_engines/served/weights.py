"""Validation of weights before a server loads them, which may crash otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet_core.errors import EngineError
from ajet_core.files import read_json
from ajet_core.interfaces import WeightUpdate
from ajet_engines.collective import CHANNEL, tensors_of
from ajet_engines.tensor_files import tensor_ranges

# Files of models with tied embeddings may include or omit the output matrix.
_TIED = "lm_head.weight"


def check_update(update: WeightUpdate, model: Path) -> None:
    """Compare the tensors of an update on any channel with those of `model`.

    :raises EngineError: as for `check_weights`.
    """
    if update.channel != CHANNEL:
        check_weights(Path(update.location), model)
        return
    actual = {tensor.name: tensor.shape for tensor in tensors_of(update)}
    try:
        expected = tensor_shapes(model)
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot read the model in {model}: {error}") from error
    _compare(update.location, actual, model, expected, model)


def check_weights(directory: Path, model: Path) -> None:
    """Compare tensors by name and shape, reading only the headers of the files.

    :raises EngineError: `directory` has other tensors than `model`, or a file is truncated or
        unreadable.
    """
    try:
        actual, expected = tensor_shapes(directory), tensor_shapes(model)
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot read the weights in {directory}: {error}") from error
    _compare(directory, actual, model, expected, directory)


def _compare(
    where: object,
    actual: dict[str, tuple[int, ...]],
    model: Path,
    expected: dict[str, tuple[int, ...]],
    configured: Path,
) -> None:
    if _config(configured, model).get("tie_word_embeddings", True):
        for shapes in (actual, expected):
            shapes.pop(_TIED, None)
    if actual != expected:
        names = sorted(
            n for n in actual.keys() | expected.keys() if actual.get(n) != expected.get(n)
        )
        raise EngineError(
            f"the weights in {where} belong to another model than {model}: {names[0]} is "
            f"{actual.get(names[0], 'missing')}, not {expected.get(names[0], 'there')} "
            f"({len(names)} tensors differ)"
        )


def tensor_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of all tensors in the safetensors files of a directory.

    :raises OSError: a file cannot be read.
    :raises ValueError: a file is not valid safetensors or truncated, or there is none.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ValueError("it contains no *.safetensors file")
    for file in files:
        shapes |= {one.name: one.shape for one in tensor_ranges(file).tensors}
    return shapes


def _config(directory: Path, model: Path) -> Mapping[str, Any]:
    for path in (directory / "config.json", model / "config.json"):
        with contextlib.suppress(FileNotFoundError):
            return read_json(path)
    return {}
