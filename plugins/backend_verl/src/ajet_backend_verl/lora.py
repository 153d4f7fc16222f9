"""Merge LoRA adapters in a state dict of peft into the weights that they adapt."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ajet_core.protocol import LoraConfig

PREFIX = "base_model.model."
BASE = ".base_layer"
DOWN = ".lora_A.default.weight"
UP = ".lora_B.default.weight"


def merged(weights: Mapping[str, torch.Tensor], lora: LoraConfig) -> dict[str, torch.Tensor]:
    """Return the weights with merged adapters: ``W + alpha / rank * B A`` each.

    LoRA is Hu et al. 2021, arXiv:2106.09685.

    :param weights: with peft's names: ``X.base_layer.weight`` [out, in],
        ``X.lora_A.default.weight`` [rank, in] and ``X.lora_B.default.weight`` [out, rank].
    """
    plain_weights: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if ".lora_A." in name or ".lora_B." in name:
            continue
        plain = name.removeprefix(PREFIX).replace(BASE, "")
        layer = name.removesuffix(BASE + ".weight")
        if layer != name and layer + DOWN in weights:
            down, up = weights[layer + DOWN].float(), weights[layer + UP].float()
            tensor = tensor.float() + lora.alpha / lora.rank * (up @ down)  # noqa: PLW2901
        plain_weights[plain] = tensor
    return plain_weights
