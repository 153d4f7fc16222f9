"""Writing a model as a Hugging Face directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

from ajet_backend_torch.directories import whole_directory
from ajet_backend_torch.models import without_progress_bar
from ajet_core.errors import TrainerError

COPIED = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
    "generation_config.json",
)
BASE_LAYER = ".base_layer."


def write_model(module: nn.Module, source: Path, target: Path) -> None:
    """Write configuration, weights and the tokenizer files of `source`; all or nothing.

    :param module: a Hugging Face causal LM, into which LoRA layers may be injected; they are merged in
        what is written, and `module` stays as it is.
    :raises TrainerError: it cannot be written.
    """
    try:
        with whole_directory(target) as aside:
            with without_progress_bar():
                _plain(module).save_pretrained(aside)  # type: ignore[operator]
            for pattern in COPIED:
                for file in source.glob(pattern):
                    if file.is_file():
                        shutil.copyfile(file, aside / file.name)
    except (OSError, RuntimeError) as error:
        raise TrainerError(f"model directory {target} could not be written: {error}") from error


def _plain(module: nn.Module) -> nn.Module:
    """`module` without LoRA layers: a model of the same class around merged weights."""
    adapted = {
        name: layer for name, layer in module.named_modules() if isinstance(layer, LoraLayer)
    }
    if not adapted:
        return module
    weights = {
        name.replace(BASE_LAYER, "."): tensor
        for name, tensor in module.state_dict().items()
        if BASE_LAYER in name or not any(name.startswith(f"{layer}.") for layer in adapted)
    }
    with torch.no_grad():
        for name, layer in adapted.items():
            weight = weights[f"{name}.weight"]
            for adapter in layer.active_adapters:
                # In float32: the sum is rounded once.
                weight = weight.float() + layer.get_delta_weight(adapter).float()
            weights[f"{name}.weight"] = weight.to(weights[f"{name}.weight"].dtype)
    with torch.device("meta"):
        plain = type(module)(module.config)
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()  # type: ignore[operator]
    return plain
