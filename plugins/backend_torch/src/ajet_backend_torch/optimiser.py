"""AdamW over master weights, with a way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from ajet_core.protocol.run import AlgorithmConfig


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Master weights and optimiser state at one moment, in host memory.

    :param weights: by parameter name.
    :param state: as `MasterAdamW.state_tensors`.
    """

    weights: Mapping[str, torch.Tensor]
    state: Mapping[str, torch.Tensor]


class MasterAdamW:
    """AdamW (Loshchilov & Hutter, arXiv:1711.05101) on float32 masters of a model's trainable parameters.

    A parameter that is float32 already is its own master. Gradients are moved to the masters after each
    micro-batch, so they add up in the masters' precision. Weight decay holds for matrices, not for
    biases and norms.

    :param parameters: the trainable parameters by name.
    :param float32: False makes every parameter its own master.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], algorithm: AlgorithmConfig, *, float32: bool
    ) -> None:
        self.parameters = dict(parameters)
        self.masters = {
            name: nn.Parameter(parameter.detach().float())
            if float32 and parameter.dtype != torch.float32
            else parameter
            for name, parameter in self.parameters.items()
        }
        masters = list(self.masters.values())
        self._max_norm = algorithm.max_grad_norm or float("inf")
        self._adamw = torch.optim.AdamW(
            [
                {
                    "params": [master for master in masters if master.dim() > 1],
                    "weight_decay": algorithm.weight_decay,
                },
                {
                    "params": [master for master in masters if master.dim() <= 1],
                    "weight_decay": 0.0,
                },
            ],
            lr=algorithm.learning_rate,
            betas=algorithm.adam_betas,
        )

    def collect_gradients(self) -> None:
        """Add the parameters' gradients to their masters'."""
        for name, parameter in self.parameters.items():
            master = self.masters[name]
            if master is parameter or parameter.grad is None:
                continue
            gradient = parameter.grad.to(master.dtype)
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    def clip(self) -> torch.Tensor:
        """Clip the gradients; returns their norm before, a scalar tensor."""
        return nn.utils.clip_grad_norm_(list(self.masters.values()), self._max_norm)

    def step(self, learning_rate: float) -> None:
        """Update the masters and write them to the parameters."""
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self.write_parameters()

    @torch.no_grad()
    def write_parameters(self) -> None:
        """Copy the masters to the parameters."""
        for name, parameter in self.parameters.items():
            if self.masters[name] is not parameter:
                parameter.copy_(self.masters[name])

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for tensor in (*self.parameters.values(), *self.masters.values()):
            tensor.grad = None

    def weight_tensors(self) -> dict[str, torch.Tensor]:
        """The masters by parameter name."""
        return {name: master.detach() for name, master in self.masters.items()}

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """The optimiser's state as ``<parameter>/<key>``; empty before the first step."""
        return {
            f"{name}/{key}": value
            for name, master in self.masters.items()
            for key, value in self._adamw.state.get(master, {}).items()
        }

    def snapshot(self) -> Snapshot:
        """Copy weights and state to host memory: three times the trainable weights, in float32."""
        return Snapshot(weights=_copied(self.weight_tensors()), state=_copied(self.state_tensors()))

    @torch.no_grad()
    def restore(
        self, weights: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]
    ) -> None:
        """Go back to weights and state as `weight_tensors` and `state_tensors` gave them."""
        self.zero_grad()
        for name, master in self.masters.items():
            master.copy_(weights[name])
        self.write_parameters()
        self._adamw.state.clear()
        for place, value in state.items():
            name, key = place.rsplit("/", 1)
            master = self.masters[name]
            # AdamW counts its steps on the host.
            device = "cpu" if key == "step" else master.device
            self._adamw.state[master][key] = value.to(device, copy=True)


def _copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
