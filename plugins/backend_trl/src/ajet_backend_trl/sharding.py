"""Sharding of weights and optimiser over processes with FSDP2, set up by accelerate.

Everything here that reads a whole weight is a collective: all processes must call it, in the same
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed
from accelerate import (
    Accelerator,
    DistributedType,
    FullyShardedDataParallelPlugin,
    PartialState,
)
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor

from ajet_backend_trl.settings import FsdpSettings
from ajet_core.protocol import AlgorithmConfig
from ajet_torch.optimiser import MasterAdamW, Snapshot, drop_gathered

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def fsdp_config(options: FsdpSettings) -> dict[str, Any]:
    """Return `transformers.TrainingArguments.fsdp_config`, which configures accelerate's plugin."""
    config: dict[str, Any] = {
        "version": 2,
        "reshard_after_forward": options.reshard_after_forward,
        "cpu_offload": options.cpu_offload,
        "auto_wrap_policy": options.auto_wrap_policy,
    }
    if options.transformer_layer_cls_to_wrap:
        config["transformer_layer_cls_to_wrap"] = list(options.transformer_layer_cls_to_wrap)
    return config


def adopt_plugin(
    accelerator: Accelerator, plugin_args: Mapping[str, Any], options: FsdpSettings
) -> None:
    """Make `accelerator` shard models.

    accelerate 1.15 uses the plugin on accelerators, but silently falls back to DDP on CPUs,
    although FSDP2 works there. So this function sets the state that accelerate sets on
    accelerators.
    """
    state = accelerator.state
    if state.distributed_type != DistributedType.FSDP:
        # Without a GPU, shards are in host memory anyway.
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**{**plugin_args, "cpu_offload": False})
        become(accelerator, DistributedType.FSDP)
    if accelerator.mixed_precision == "bf16":
        state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=DTYPES[options.reduce_dtype]
        )


def become(accelerator: Accelerator, kind: DistributedType) -> None:
    """Set the kind of distribution in accelerate's states, which the whole process shares."""
    accelerator.state.distributed_type = kind
    # Each new state starts as a copy of this one.
    PartialState._shared_state["distributed_type"] = kind


def shard(accelerator: Accelerator, model: nn.Module) -> nn.Module:
    """Shard the weights of `model` in place."""
    # accelerate requires an optimiser, whose parameters it replaces. The real one is created later,
    # from the shards.
    stand_in = torch.optim.SGD(model.parameters(), lr=0.0)
    sharded: nn.Module
    sharded, _ = accelerator.prepare(model, stand_in)
    accelerator._optimizers.clear()
    return sharded


@contextmanager
def as_it_is(accelerator: Any) -> Iterator[None]:
    """Make `Accelerator.prepare` return its arguments unchanged: they are already prepared."""
    accelerator.prepare = lambda *objects: objects if len(objects) > 1 else objects[0]
    try:
        yield
    finally:
        del accelerator.prepare


def whole(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Assemble a tensor; a collective.

    :param device: where shards from host memory are assembled.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    here = DTensor.from_local(
        tensor.to_local().to(device),
        tensor.device_mesh,
        tensor.placements,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return here.full_tensor()


def gathered(
    tensors: Mapping[str, torch.Tensor], device: torch.device, *, keep: bool
) -> dict[str, torch.Tensor]:
    """Assemble all tensors in host memory; a collective.

    :param keep: False only takes part, and returns nothing.
    """
    complete_tensors = {}
    for name, tensor in tensors.items():
        complete = whole(tensor.detach(), device)
        if keep:
            complete_tensors[name] = complete.cpu()
    return complete_tensors


class ShardedAdamW(MasterAdamW):
    """AdamW on the shards of this process, with snapshots of these shards.

    Methods that return whole tensors are collectives, and so is `is_finite`.

    :param module: the sharded model.
    :param device: device of this process, for communication.
    """

    def __init__(self, module: nn.Module, algorithm: AlgorithmConfig, device: torch.device) -> None:
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        super().__init__(trained, algorithm, float32=False)
        self._module = module
        self._device = device

    def restore(self, before: Snapshot) -> None:
        """Restore a snapshot of the shards, as `MasterAdamW.restore`."""
        # A pass that failed had no backward pass.
        drop_gathered(self._module)
        super().restore(before)

    def weight_tensors(self) -> dict[str, torch.Tensor]:
        """Return the shards of this process."""
        return {name: _local(tensor) for name, tensor in super().weight_tensors().items()}

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return the shards of the optimiser's state."""
        return {name: _local(tensor) for name, tensor in super().state_tensors().items()}

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Return whether all weights of all processes are finite."""
        tensors = self.weight_tensors().values()
        finite = torch.stack([tensor.isfinite().all() for tensor in tensors]).all()
        mine = finite.to(self._device, torch.int32)
        torch.distributed.all_reduce(mine, torch.distributed.ReduceOp.MIN)
        return bool(mine)

    def gather(self, *, keep: bool) -> Snapshot:
        """Assemble weights and state in host memory.

        :param keep: False only takes part, and returns nothing.
        """
        weights = gathered(super().weight_tensors(), self._device, keep=keep)
        return Snapshot(weights, gathered(super().state_tensors(), self._device, keep=keep))

    def alike(self) -> Snapshot:
        """Return tensors without memory, with shapes and dtypes of the whole tensors."""
        return Snapshot(_shapes(super().weight_tensors()), _shapes(super().state_tensors()))

    def restore_whole(self, before: Snapshot) -> None:
        """Load this process's shards from whole tensors."""
        weights = _cut(before.weights, super().weight_tensors())
        self.restore(Snapshot(weights, _cut(before.state, super().state_tensors())))

    def model_weights(self, *, keep: bool) -> dict[str, torch.Tensor]:
        """Assemble the model's state in host memory; `keep` as in `gather`."""
        return gathered(self._module.state_dict(), self._device, keep=keep)


class Distributed(Protocol):
    """A distributed model and its optimiser; all methods except `alike` are collectives."""

    def gather(self, *, keep: bool) -> Snapshot:
        """Assemble weights and state in host memory; empty unless `keep`."""
        ...

    def alike(self) -> Snapshot:
        """Return tensors without memory, with shapes and dtypes of the whole tensors."""
        ...

    def restore_whole(self, before: Snapshot) -> None:
        """Load this process's part of whole tensors."""
        ...

    def model_weights(self, *, keep: bool) -> dict[str, torch.Tensor]:
        """Assemble the model's state in host memory; empty unless `keep`."""
        ...


@dataclass(frozen=True, slots=True)
class WholeState:
    """The checkpointed state of a distributed optimiser.

    :param kept: result of `Distributed.gather`; None if it is only loaded into.
    """

    optimiser: Distributed
    kept: Snapshot | None = None

    def weight_tensors(self) -> Mapping[str, torch.Tensor]:
        """As `Checkpointed`, with the values at the time of `Distributed.gather`."""
        assert self.kept is not None, "what is written was gathered"
        return self.kept.weights

    def state_tensors(self) -> Mapping[str, torch.Tensor]:
        """As `Checkpointed`, with the values at the time of `Distributed.gather`."""
        assert self.kept is not None, "what is written was gathered"
        return self.kept.state

    def alike(self) -> Snapshot:
        """Return tensors without memory, with shapes and dtypes of the whole tensors."""
        return self.optimiser.alike()

    def restore(self, before: Snapshot) -> None:
        """Load each process's part from whole tensors."""
        self.optimiser.restore_whole(before)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in tensors.items()
    }


def _cut(
    tensors: Mapping[str, torch.Tensor], like: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    local_tensors = {}
    for name, present in like.items():
        tensor = tensors[name]
        if isinstance(present, DTensor):
            # Every process has the whole tensor, so nothing has to be sent.
            tensor = distribute_tensor(
                tensor, present.device_mesh, present.placements, src_data_rank=None
            ).to_local()
        local_tensors[name] = tensor
    return local_tensors
