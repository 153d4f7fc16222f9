"""Weights and optimiser that are cut into shards, one for each process: FSDP2, set up by accelerate.

Whatever looks at a whole weight here is a collective: all processes have to do it, in the same order.
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
from ajet_core.protocol.run import AlgorithmConfig
from ajet_torch.optimiser import MasterAdamW, Snapshot

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def fsdp_config(options: FsdpSettings) -> dict[str, Any]:
    """`transformers.TrainingArguments.fsdp_config`, of which it makes accelerate's plugin."""
    found: dict[str, Any] = {
        "version": 2,
        "reshard_after_forward": options.reshard_after_forward,
        "cpu_offload": options.cpu_offload,
        "auto_wrap_policy": options.auto_wrap_policy,
    }
    if options.transformer_layer_cls_to_wrap:
        found["transformer_layer_cls_to_wrap"] = list(options.transformer_layer_cls_to_wrap)
    return found


def adopt_plugin(
    accelerator: Accelerator, plugin_args: Mapping[str, Any], options: FsdpSettings
) -> None:
    """Have `accelerator` shard.

    accelerate 1.15 takes a plugin over for GPUs and the like, and on CPUs goes on with DDP without a word, though FSDP2
    works there: the state that it sets for the others is set here.
    """
    state = accelerator.state
    if state.distributed_type != DistributedType.FSDP:
        # Where there is no GPU, shards are in host memory anyway.
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**{**plugin_args, "cpu_offload": False})
        become(accelerator, DistributedType.FSDP)
    if accelerator.mixed_precision == "bf16":
        state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=DTYPES[options.reduce_dtype]
        )


def become(accelerator: Accelerator, kind: DistributedType) -> None:
    """Set what accelerate's states, which are the same for all of a process, say of how it is distributed."""
    accelerator.state.distributed_type = kind
    # Each new state begins as a copy of this one.
    PartialState._shared_state["distributed_type"] = kind


def shard(accelerator: Accelerator, model: nn.Module) -> nn.Module:
    """Cut the weights of `model`, in place."""
    # accelerate asks for an optimiser too, whose parameters it replaces. The one that trains is made afterwards: of shards.
    stand_in = torch.optim.SGD(model.parameters(), lr=0.0)
    sharded: nn.Module
    sharded, _ = accelerator.prepare(model, stand_in)
    accelerator._optimizers.clear()
    return sharded


@contextmanager
def as_it_is(accelerator: Any) -> Iterator[None]:
    """Within, `Accelerator.prepare` prepares nothing: what it is given is prepared."""
    accelerator.prepare = lambda *objects: objects if len(objects) > 1 else objects[0]
    try:
        yield
    finally:
        del accelerator.prepare


def whole(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Put a tensor together; a collective.

    :param device: where shards that are kept in host memory are put together.
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
    """All of them whole in host memory; a collective.

    :param keep: False takes part, and has nothing.
    """
    found = {}
    for name, tensor in tensors.items():
        complete = whole(tensor.detach(), device)
        if keep:
            found[name] = complete.cpu()
    return found


class ShardedAdamW(MasterAdamW):
    """AdamW on this process's shards: snapshots are of these.

    What names whole tensors is a collective, as `is_finite` is.

    :param module: sharded.
    :param device: of this process, on which it talks to the others.
    """

    def __init__(self, module: nn.Module, algorithm: AlgorithmConfig, device: torch.device) -> None:
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        super().__init__(trained, algorithm, float32=False)
        self._module = module
        self._device = device

    def weight_tensors(self) -> dict[str, torch.Tensor]:
        """The shards of this process."""
        return {name: _local(tensor) for name, tensor in super().weight_tensors().items()}

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Those of the optimiser's state."""
        return {name: _local(tensor) for name, tensor in super().state_tensors().items()}

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Whether all weights of all processes are."""
        tensors = self.weight_tensors().values()
        finite = torch.stack([tensor.isfinite().all() for tensor in tensors]).all()
        mine = finite.to(self._device, torch.int32)
        torch.distributed.all_reduce(mine, torch.distributed.ReduceOp.MIN)
        return bool(mine)

    def gather(self, *, keep: bool) -> Snapshot:
        """Weights and state, whole and in host memory.

        :param keep: False takes part, and has nothing.
        """
        weights = gathered(super().weight_tensors(), self._device, keep=keep)
        return Snapshot(weights, gathered(super().state_tensors(), self._device, keep=keep))

    def alike(self) -> Snapshot:
        """Shapes and dtypes of the whole tensors."""
        return Snapshot(_shapes(super().weight_tensors()), _shapes(super().state_tensors()))

    def restore_whole(self, before: Snapshot) -> None:
        """Take this process's shards of whole tensors."""
        weights = _cut(before.weights, super().weight_tensors())
        self.restore(Snapshot(weights, _cut(before.state, super().state_tensors())))

    def model_weights(self, *, keep: bool) -> dict[str, torch.Tensor]:
        """The model's state, whole and in host memory; `keep` as of `gather`."""
        return gathered(self._module.state_dict(), self._device, keep=keep)


class Distributed(Protocol):
    """A model and its optimiser that are cut up; all of it collectives but `alike`."""

    def gather(self, *, keep: bool) -> Snapshot:
        """Weights and state, whole and in host memory; nothing unless `keep`."""
        ...

    def alike(self) -> Snapshot:
        """Shapes and dtypes of the whole tensors."""
        ...

    def restore_whole(self, before: Snapshot) -> None:
        """Take this process's part of whole tensors."""
        ...

    def model_weights(self, *, keep: bool) -> dict[str, torch.Tensor]:
        """The model's state, whole and in host memory; nothing unless `keep`."""
        ...


@dataclass(frozen=True, slots=True)
class WholeState:
    """What a checkpoint has of an optimiser that is cut up.

    :param kept: of `Distributed.gather`; None can only be loaded into.
    """

    optimiser: Distributed
    kept: Snapshot | None = None

    def weight_tensors(self) -> Mapping[str, torch.Tensor]:
        """As `Checkpointed`, at the time of `Distributed.gather`."""
        assert self.kept is not None, "what is written was gathered"
        return self.kept.weights

    def state_tensors(self) -> Mapping[str, torch.Tensor]:
        """As `weight_tensors`."""
        assert self.kept is not None, "what is written was gathered"
        return self.kept.state

    def alike(self) -> Snapshot:
        """As `Distributed.alike`."""
        return self.optimiser.alike()

    def restore(self, before: Snapshot) -> None:
        """As `Distributed.restore_whole`."""
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
    found = {}
    for name, present in like.items():
        tensor = tensors[name]
        if isinstance(present, DTensor):
            # All processes have it whole, so that none has to send it.
            tensor = distribute_tensor(
                tensor, present.device_mesh, present.placements, src_data_rank=None
            ).to_local()
        found[name] = tensor
    return found
