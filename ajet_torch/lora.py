"""LoRA adapters with peft. Only imported by runs that train adapters."""

from __future__ import annotations

from typing import cast

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import nn

from ajet_core.errors import ConfigError
from ajet_core.protocol.run import LoraConfig

__all__ = ["BASE_LAYER", "add_lora", "merged"]

BASE_LAYER = ".base_layer."


def add_lora(module: nn.Module, lora: LoraConfig, device: torch.device, seed: int) -> PeftModel:
    """Add adapters to `module`; only these are trained.

    :param seed: seed of their initial weights.
    :raises ConfigError: the model does not have the target layers.
    """
    config = PeftLoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules
        if isinstance(lora.target_modules, str)
        else list(lora.target_modules),
    )
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        try:
            peft = get_peft_model(module, config)
        except ValueError as error:
            raise ConfigError(
                f"cannot add LoRA adapters: {error}", param="model.lora.target_modules"
            ) from error
    peft.eval()
    return cast("PeftModel", peft)


def merged(module: nn.Module) -> nn.Module:
    """Return a model of the same class with merged weights, without LoRA layers."""
    adapted = {
        name: layer for name, layer in module.named_modules() if isinstance(layer, LoraLayer)
    }
    weights = {
        name.replace(BASE_LAYER, "."): tensor
        for name, tensor in module.state_dict().items()
        if BASE_LAYER in name or not any(name.startswith(f"{layer}.") for layer in adapted)
    }
    with torch.no_grad():
        for name, layer in adapted.items():
            weight = weights[f"{name}.weight"]
            for adapter in layer.active_adapters:
                # In float32, so that the sum is rounded only once.
                weight = weight.float() + layer.get_delta_weight(adapter).float()
            weights[f"{name}.weight"] = weight.to(weights[f"{name}.weight"].dtype)
    with torch.device("meta"):
        plain = type(module)(module.config)
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()  # type: ignore[operator]
    return plain
