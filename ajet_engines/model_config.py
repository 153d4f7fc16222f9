"""Validation of a model directory's ``config.json``, before anything loads the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet_core.errors import ModelDirectoryError, UnreadableFileError
from ajet_core.files import read_json

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
# No model has as much of anything; larger sizes only fail once memory is allocated.
_LARGEST = 2**31 - 1
_DTYPES = frozenset({"auto", "float64", "float32", "float16", "bfloat16"})
# Prefix of the dtypes of quantised weights, of which torch has several.
_DTYPE_FAMILY = "float8_"


def read_model_config(directory: Path, param: str = "model.path") -> dict[str, Any]:
    """Read the configuration of a model, and check that its sizes and dtypes are valid.

    The component that loads the model checks whether its architecture and quantisation are
    supported.

    :param param: the field of the run configuration that names the directory.
    :raises ModelDirectoryError: the file is missing, has other content, or has an invalid size or
        dtype.
    """
    path = directory / "config.json"
    try:
        config = read_json(path)
    except FileNotFoundError:
        raise ModelDirectoryError(f"{directory} has no config.json", param=param) from None
    except UnreadableFileError as error:
        raise ModelDirectoryError(error.message, param=param) from error
    _check(path, "", config, param)
    for name in ("text_config", "quantization_config"):
        part = config.get(name)
        if part is not None and not isinstance(part, dict):
            raise ModelDirectoryError(f"{path}: {name} is not a JSON object", param=param)
        if name == "text_config" and part:
            _check(path, "text_config.", part, param)
    return config


def _check(path: Path, prefix: str, config: Mapping[str, Any], param: str) -> None:
    for name in _SIZES:
        size = config.get(name)
        # Models whose layers differ have lists of sizes.
        sizes = size if isinstance(size, list) else [] if size is None else [size]
        for one in sizes:
            if isinstance(one, bool) or not isinstance(one, int) or not 1 <= one <= _LARGEST:
                raise ModelDirectoryError(
                    f"{path}: {prefix}{name} is {str(one)[:64]!r}, expected a number from 1 to "
                    f"{_LARGEST}",
                    param=param,
                )
    for name in ("dtype", "torch_dtype"):
        if (dtype := config.get(name)) is None:
            continue
        dtype = str(dtype)
        plain = dtype.removeprefix("torch.")
        if plain not in _DTYPES and not plain.startswith(_DTYPE_FAMILY):
            raise ModelDirectoryError(
                f"{path}: {prefix}{name} is {dtype[:64]!r}, expected one of "
                f"{', '.join(sorted(_DTYPES))}",
                param=param,
            )
