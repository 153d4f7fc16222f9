"""Model directories: validation, loading, and sharing a loaded model between trainer and engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.quantizers import AutoHfQuantizer
from transformers.utils import logging as hf_logging

from ajet_core.errors import ConfigError, ModelDirectoryError
from ajet_core.files import read_json
from ajet_core.protocol.run import ModelConfig
from ajet_engines.collective import file_tensors
from ajet_engines.model_config import read_model_config
from ajet_torch.memory import is_out_of_memory

__all__ = [
    "DTYPES",
    "INDEX_FILE",
    "SHARED_MODEL_KEY",
    "SharedModel",
    "check_model_directory",
    "checked_positions",
    "context_limit",
    "disable_own_dropout",
    "exact_positions",
    "in_a_sentence",
    "load_config",
    "load_model",
    "resolve_device",
    "set_threads",
    "stored_tensors",
    "vocabulary_size",
    "without_progress_bar",
]

_SAID_CHARACTERS = 1000
SHARED_MODEL_KEY = "torch.model"
INDEX_FILE = "model.safetensors.index.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class SharedModel:
    """A model shared by trainer and engine of one process (weight channel ``in_process``).

    :param path: the directory it was loaded from.
    :param module: a Hugging Face causal LM; its parameters are the trainer's tensors.
    :param policy_version: the version that the weights were published as.
    """

    path: str
    module: nn.Module
    policy_version: int


def resolve_device(name: str) -> torch.device:
    """Return the device that a `device` setting names.

    :raises ConfigError: the CUDA device does not exist.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ConfigError(
                f"device {name!r} is not available: torch sees {count} CUDA devices; choose "
                "'auto' or 'cpu', or install a CUDA build of torch",
                param="device",
            )
    return device


def set_threads(threads: int | None, device: torch.device) -> None:
    """Apply a `threads` setting."""
    if threads is not None:
        torch.set_num_threads(threads)
    elif device.type == "cpu":
        torch.set_num_threads(1)


def check_model_directory(path: Path) -> None:
    """Check that `path` holds a configuration and readable safetensors weights.

    :raises ModelDirectoryError: something is missing or damaged; the message says what.
    """
    if not path.is_dir():
        raise ModelDirectoryError(f"model directory {path} does not exist", param="model.path")
    read_model_config(path)
    for file in _weight_files(path):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ModelDirectoryError(
                f"cannot read weight file {file} ({error}); copy or download it again",
                param="model.path",
            ) from error


def load_config(path: Path) -> Any:
    """Load the Hugging Face configuration of a model directory without running code from it.

    :raises ModelDirectoryError: transformers does not support it.
    """
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        quantised: Any = getattr(config, "quantization_config", None)
        known = quantised is None or AutoHfQuantizer.supports_quant_method(quantised)
    # transformers checks some fields by assertions, and imports modules named in others.
    except Exception as error:
        raise ModelDirectoryError(
            f"transformers cannot load the configuration of {path} without running code: "
            f"{in_a_sentence(error)}",
            param="model.path",
        ) from error
    if not known:
        # transformers would treat the weights as unquantised.
        raise ModelDirectoryError(
            f"{path / 'config.json'}: transformers does not support "
            f"quantization_config.quant_method {quantised['quant_method']!r}",
            param="model.path",
        )
    return config


def in_a_sentence(error: Exception) -> str:
    """Return a library's error message, with its class if the message is a single word."""
    said = " ".join(str(error).split())[:_SAID_CHARACTERS]
    return said if " " in said else f"{type(error).__name__}: {said}"


def _weight_files(path: Path) -> list[Path]:
    index = path / INDEX_FILE
    if not index.is_file():
        files = sorted(path.glob("*.safetensors"))
        if not files:
            pickled = sorted(file.name for file in path.glob("*.bin"))
            hint = (
                f"; it has {pickled[0]}, which may run code when loaded: convert it to safetensors"
                if pickled
                else ""
            )
            raise ModelDirectoryError(
                f"model directory {path} has no *.safetensors weights{hint}", param="model.path"
            )
        return files
    try:
        names = sorted({str(name) for name in read_json(index)["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelDirectoryError(
            f"cannot read weight index {index} ({error!r})", param="model.path"
        ) from error
    if outside := [name for name in names if "\0" in name or Path(name).name != name]:
        raise ModelDirectoryError(
            f"weight index {index} names {outside[0]!r}, which is not a file in its own directory",
            param="model.path",
        )
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise ModelDirectoryError(
            f"model directory {path} lacks weight files that its index names: {', '.join(missing)}",
            param="model.path",
        )
    return [path / name for name in names]


def load_model(
    model: ModelConfig,
    device: torch.device,
    *,
    dtype: torch.dtype | None = None,
    strict: bool = False,
) -> nn.Module:
    """Load the causal LM of a model directory in evaluation mode, without running code from it.

    ``ModelConfig.dtype="auto"`` uses the checkpoint's dtype on CUDA and float32 on the CPU, where
    half precision is slow and many operations lack it.

    :param dtype: overrides the dtype of `model`.
    :param strict: also refuse weights that are not part of the model.

    :raises ModelDirectoryError: the directory is incomplete, damaged or not of a causal LM.
    """
    path = Path(model.path)
    check_model_directory(path)
    wanted: torch.dtype | str
    if dtype is not None:
        wanted = dtype
    elif model.dtype == "auto":
        wanted = torch.float32 if device.type == "cpu" else "auto"
    else:
        wanted = DTYPES[model.dtype]
    config = load_config(path)
    try:
        with without_progress_bar():
            module, info = AutoModelForCausalLM.from_pretrained(
                path,
                config=config,
                dtype=wanted,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                # Mismatches are refused below with their names.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    # Any error is blamed on the directory: the libraries raise anything from assertions to import
    # errors for an unknown quantisation.
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ModelDirectoryError(
            f"cannot load model directory {path} as a causal language model: "
            f"{in_a_sentence(error)}",
            param="model.path",
        ) from error
    _check_loading_info(path, info, strict)
    module.to(device)
    module.eval()
    return module  # type: ignore[no-any-return]


def stored_tensors(directory: Path, module: nn.Module) -> dict[str, torch.Tensor] | None:
    """Return the tensors of a directory by their names in the state of a model.

    This does not create another model as `load_model` does, which holds the interpreter's lock for
    long.

    :return: None if the tensors are not those of `module`, have another form in files (such as
        experts that transformers stacks), or cannot be read: then use `load_model`.
    """
    own, in_files = module.state_dict(), file_tensors(module)
    if any(name not in own or not _same_memory(own[name], t) for name, t in in_files.items()):
        return None
    stored: dict[str, torch.Tensor] = {}
    try:
        for path in sorted(directory.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                stored |= {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
    # Files may include tied tensors.
    if not in_files.keys() <= stored.keys() <= own.keys():
        return None
    fits = all(tensor.shape == own[name].shape for name, tensor in stored.items())
    return stored if fits else None


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape


def _check_loading_info(path: Path, info: Mapping[str, object], strict: bool) -> None:
    for kind, verb in (
        ("missing_keys", "lack"),
        ("unexpected_keys", "have unknown"),
        ("mismatched_keys", "have wrong shapes for"),
    ):
        entries = cast("Iterable[str | tuple[str, ...]]", info.get(kind) or ())
        keys = sorted(key if isinstance(key, str) else key[0] for key in entries)
        if keys and (strict or kind != "unexpected_keys"):
            shown = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
            raise ModelDirectoryError(f"the weights in {path} {verb} {shown}", param="model.path")


@contextmanager
def without_progress_bar() -> Iterator[None]:
    """Disable the progress bars of transformers, which do not belong into logs."""
    enabled = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            hf_logging.enable_progress_bar()


def context_limit(module: nn.Module, model: ModelConfig) -> int:
    """Return the maximum number of tokens of a prompt and its completion together.

    :raises ConfigError: `ModelConfig.max_context` exceeds the model's positions, or is required
        because the model has no limit.
    """
    limit = getattr(module.config, "max_position_embeddings", None)
    wanted = model.max_context
    exact = checked_positions(module, model)
    if exact is not None and (not isinstance(limit, int) or limit > exact):
        limit = exact
    if not isinstance(limit, int):
        if wanted is None:
            raise ConfigError(
                f"model {model.path} does not set max_position_embeddings; set model.max_context",
                param="model.max_context",
            )
        return wanted
    if wanted is not None and wanted > limit:
        raise ConfigError(
            f"model.max_context is {wanted}, but {model.path} has only {limit} positions",
            param="model.max_context",
        )
    return wanted or limit


def checked_positions(module: nn.Module, model: ModelConfig) -> int | None:
    """Return `exact_positions`, after checking that `ModelConfig.max_context` does not exceed it.

    :raises ConfigError: it does.
    """
    exact, wanted = exact_positions(module), model.max_context
    if exact is not None and wanted is not None and wanted > exact:
        raise ConfigError(
            f"model.max_context is {wanted}, but {model.path} rotates the positions of "
            f"contexts longer than {exact} tokens by a factor that depends on their length, "
            f"so cached tokens would be wrong: set model.max_context to at most {exact}",
            param="model.max_context",
        )
    return exact


def exact_positions(module: nn.Module) -> int | None:
    """Return the length up to which positions mean the same in every context; None for any length.

    Rotary embeddings of the kinds ``longrope`` and ``dynamic`` rotate all positions of a context
    differently once it is longer than in the model's original training.
    """
    config = module.config
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    # Models with several kinds of layers have a set of parameters for each kind.
    for part in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if part.get("rope_type", part.get("type")) in {"longrope", "dynamic"}:
            for source in (part.get, lambda name: getattr(config, name, None)):
                original = source("original_max_position_embeddings")
                if isinstance(original, int):
                    return original
            positions = getattr(config, "max_position_embeddings", None)
            return positions if isinstance(positions, int) else None
    return None


def vocabulary_size(module: nn.Module) -> int:
    """Return the number of token ids, and of logits, of a causal LM."""
    return int(module.get_input_embeddings().weight.shape[0])  # type: ignore[operator]


def disable_own_dropout(module: nn.Module) -> None:
    """Disable the model's dropout, which would make behaviour and trainer logprobs differ."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Dropout) and "lora_dropout" not in name:
            part.p = 0.0
        if isinstance(getattr(part, "attention_dropout", None), float):
            part.attention_dropout = 0.0
