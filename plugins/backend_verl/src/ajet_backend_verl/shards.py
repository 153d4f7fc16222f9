"""Each worker's share of weights and optimiser: copy it, gather it, load it from whole tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from ajet_torch.optimiser import drop_gathered

Kind = Literal["weights", "state"]
WEIGHTS: Kind = "weights"
STATE: Kind = "state"


@dataclass(frozen=True, slots=True)
class Plain:
    """A tensor in transit through Ray, as bytes because numpy has no bfloat16.

    Ray passes on arrays without copying them.

    :param data: bytes of the tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Plain:
        """Convert a tensor, copying it to the host."""
        whole = tensor.detach().cpu().contiguous()
        name = str(whole.dtype).removeprefix("torch.")
        return cls(name, tuple(whole.shape), whole.reshape(-1).view(torch.uint8).numpy())

    def tensor(self) -> torch.Tensor:
        """Convert to a tensor, copying the data: Ray's arrays are read-only."""
        flat = torch.from_numpy(self.data.copy()).view(getattr(torch, self.dtype))
        return flat.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Described:
    """The description of a whole tensor that is distributed over the workers.

    :param dtype: name of the dtype, such as ``float32``.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Number of bytes of the whole tensor."""
        return math.prod(self.shape) * int(getattr(torch, self.dtype).itemsize)

    def meta(self) -> torch.Tensor:
        """Return a tensor without memory, with this shape and dtype."""
        return torch.empty(self.shape, dtype=getattr(torch, self.dtype), device="meta")


class Shards:
    """Trained weights and optimiser state of one worker, by name.

    The optimiser's memory is allocated at once, so that a model that does not fit fails at the
    start.

    :param module: wrapped by FSDP2.
    :param optimiser: AdamW.
    """

    def __init__(self, module: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        self._module = module
        self._optimiser = optimiser
        self._kept: dict[str, torch.Tensor] = {}
        for _, parameter in self._trained():
            optimiser.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(n, p) for n, p in self._module.named_parameters() if p.requires_grad]

    def tensors(self, kind: Kind) -> dict[str, torch.Tensor]:
        """Return the trained weights, or the optimiser state as ``<parameter>/<key>``."""
        if kind == WEIGHTS:
            return {name: parameter.detach() for name, parameter in self._trained()}
        return {
            f"{name}/{key}": value
            for name, parameter in self._trained()
            for key, value in self._optimiser.state[parameter].items()
        }

    def model(self) -> dict[str, torch.Tensor]:
        """Return the distributed tensors of the model's whole state dict, including adapters."""
        return dict(self._module.state_dict())

    def size(self) -> int:
        """Return the number of trained parameters, of all workers together."""
        return sum(parameter.numel() for _, parameter in self._trained())

    def keep(self) -> None:
        """Copy this worker's share to host memory, which is allocated once."""
        for name, local in self._locals().items():
            if name not in self._kept:
                self._kept[name] = torch.empty_like(local, device="cpu")
            self._kept[name].copy_(local)

    def restore(self) -> None:
        """Restore the copy of `keep`, in the same tensors."""
        # A pass that failed had no backward pass.
        drop_gathered(self._module)
        for name, local in self._locals().items():
            local.copy_(self._kept[name])

    def put(self, kind: Kind, whole: Mapping[str, Plain]) -> None:
        """Load this worker's share from whole tensors."""
        mine = self.tensors(kind)
        with torch.no_grad():
            for name, plain in whole.items():
                tensor = plain.tensor()
                target = mine[name]
                if isinstance(target, DTensor):
                    # Every worker has the whole tensor, so nothing has to be sent.
                    tensor = distribute_tensor(
                        tensor.to(target.device),
                        target.device_mesh,
                        target.placements,
                        src_data_rank=None,
                    ).to_local()
                local_of(target).copy_(tensor)

    def is_finite(self) -> bool:
        """Return whether all weights of this worker are finite."""
        bounds = [
            bound
            for tensor in self.tensors(WEIGHTS).values()
            if (local := local_of(tensor)).numel()
            for bound in local.aminmax()
        ]
        return bool(torch.stack(bounds).isfinite().all()) if bounds else True

    def _locals(self) -> dict[str, torch.Tensor]:
        tensors = {**self.tensors(WEIGHTS), **self.tensors(STATE)}
        return {name: local_of(tensor) for name, tensor in tensors.items()}


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this worker's share, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather(
    tensors: Mapping[str, torch.Tensor],
    names: Iterable[str],
    device: torch.device,
    *,
    wanted: bool,
) -> dict[str, Plain]:
    """Assemble whole tensors in host memory; all workers must request the same ones.

    :param wanted: whether this worker returns them.
    """
    gathered = {}
    for name in names:
        tensor = tensors[name]
        # Offloaded tensors must be moved to the device that communication uses.
        whole = tensor.to(device)
        if isinstance(whole, DTensor):
            whole = whole.full_tensor()
        if wanted:
            gathered[name] = Plain.of(whole)
    return gathered


def described(tensors: Mapping[str, torch.Tensor]) -> dict[str, Described]:
    """Describe distributed tensors as whole ones."""
    return {
        name: Described(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors.items()
    }
