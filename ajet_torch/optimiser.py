"""AdamW over master weights, with snapshots and partial undo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ajet_core.protocol.run import AlgorithmConfig
from ajet_torch.update_clipping import UpdateClipping
from ajet_torch.update_limit import LastUpdate

__all__ = ["MasterAdamW", "Snapshot", "drop_gathered"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Master weights and optimiser state at one time, in host memory.

    :param weights: as `MasterAdamW.weight_tensors`.
    :param state: as `MasterAdamW.state_tensors`.
    """

    weights: Mapping[str, torch.Tensor]
    state: Mapping[str, torch.Tensor]


class MasterAdamW:
    """AdamW on float32 masters of a model's trainable parameters.

    AdamW is that of Loshchilov & Hutter, arXiv:1711.05101. A float32 parameter is its own master.
    Gradients are moved to the masters after each micro-batch, so they accumulate in the masters'
    precision. Weight decay applies to matrices, not to biases and norms. Updates are clipped, see
    `UpdateClipping`. All memory of the optimiser is allocated at once, so that a model that does
    not fit fails at the start.

    :param parameters: the trainable parameters by name.
    :param float32: if False, every parameter is its own master.
    :ivar torn: whether an update failed while it was applied, so that only `restore` can recover.
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
        self.torn = False
        self._kept: Snapshot | None = None
        masters = list(self.masters.values())
        cuda = next((master.device for master in masters if master.is_cuda), None)
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
            # On CUDA the default needs as much additional memory as the masters while it updates
            # them.
            fused=cuda is not None,
        )
        self._last = LastUpdate(self._adamw)
        if algorithm.max_update_rms:
            UpdateClipping(self._adamw, algorithm.max_update_rms)
        for master in masters:
            self._adamw.state[master] = {
                "step": torch.zeros((), device=cuda),
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }

    @property
    def adamw(self) -> torch.optim.AdamW:
        """The optimiser of the masters, for training loops that call its `step` themselves."""
        return self._adamw

    @property
    def size(self) -> int:
        """The number of trained parameters."""
        return sum(master.numel() for master in self.masters.values())

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
        """Clip the gradients and return their previous norm, a scalar tensor."""
        return nn.utils.clip_grad_norm_(list(self.masters.values()), self._max_norm)

    def step(self, learning_rate: float) -> None:
        """Update the masters and write them to the parameters."""
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self.write_parameters()

    def shorten(self, share: float) -> None:
        """Undo a share of the last update; its moments are kept.

        :param share: share of what remains of the update, in (0, 1].
        """
        self._last.shorten(share)
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
        """Return the masters by parameter name."""
        return {name: master.detach() for name, master in self.masters.items()}

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return the optimiser's state as ``<parameter>/<key>``."""
        return {
            f"{name}/{key}": value
            for name, master in self.masters.items()
            for key, value in self._adamw.state[master].items()
        }

    def alike(self) -> Snapshot:
        """Return the tensors themselves, for their shapes and dtypes."""
        return Snapshot(self.weight_tensors(), self.state_tensors())

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Return whether all weights are finite."""
        # Extremes propagate NaN. On the CPU this is 15 times faster than isfinite() of every
        # weight.
        extremes = [bound for master in self.masters.values() for bound in master.aminmax()]
        return bool(torch.stack(extremes).isfinite().all())

    @torch.no_grad()
    def snapshot(self) -> Snapshot:
        """Copy weights and state to host memory: three times the trainable weights, in float32.

        The memory is allocated once; a snapshot is valid until the next one.
        """
        weights, state = self.weight_tensors(), self.state_tensors()
        if self._kept is None:
            self._kept = Snapshot(_host_copies(weights), _host_copies(state))
        _copy(weights, self._kept.weights)
        _copy(state, self._kept.state)
        return self._kept

    @torch.no_grad()
    def restore(self, before: Snapshot) -> None:
        """Restore a snapshot, in the same tensors."""
        self.torn = True
        self.zero_grad()
        _copy(before.weights, self.weight_tensors())
        _copy(before.state, self.state_tensors())
        self.write_parameters()
        self.torn = False


def drop_gathered(module: nn.Module) -> None:
    """Free the weights that a pass without gradients has left gathered.

    FSDP2 keeps those of some units (the root, and those with ``reshard_after_forward=False``) until
    the next backward pass. Until then, changes to the shards would have no effect.

    :param module: a model that may be sharded by FSDP2.
    """
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            unit.reshard()


def _host_copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    # Not pinned: PyTorch rounds pinned memory up to powers of two, tensor by tensor.
    return {name: torch.empty_like(tensor, device="cpu") for name, tensor in tensors.items()}


def _copy(source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
