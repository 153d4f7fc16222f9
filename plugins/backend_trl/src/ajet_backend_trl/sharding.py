"""Weights and optimiser that are cut into shards, one for each process: FSDP2, set up by accelerate.

Whatever looks at a whole weight here is a collective: all processes have to do it, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from ajet_backend_torch.optimiser import MasterAdamW, Snapshot
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor

from ajet_backend_trl.settings import FsdpSettings
from ajet_core.protocol.run import AlgorithmConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def fsdp_config(options: FsdpSettings) -> dict[str, Any]:
    """`transformers.TrainingArguments.fsdp_config`, of which it makes accelerate's plugin."""
    found: dict[str, Any] = {
        "version": 2,
        "reshard_after_forward": options.reshard_after_forward,
        "cpu_offload": options.cpu_offload,
        "auto_wrap_policy": options.auto_wrap_policy,
    }
    if options.min_num_params is not None:
        found["min_num_params"] = options.min_num_params
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
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**plugin_args)
        state.distributed_type = DistributedType.FSDP
    if accelerator.mixed_precision == "bf16":
        state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=DTYPES[options.reduce_dtype]
        )


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
    accelerator.prepare = lambda *objects: objects
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
    """AdamW on this process's shards. Snapshots are of shards, `is_finite` is a collective.

    :param parameters: trainable ones by name, sharded.
    :param device: of this process, on which it talks to the others.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        algorithm: AlgorithmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(parameters, algorithm, float32=False)
        self.device = device

    def weight_tensors(self) -> dict[str, torch.Tensor]:
        """This process's shards."""
        return {name: _local(tensor) for name, tensor in super().weight_tensors().items()}

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Those of the optimiser's state."""
        return {name: _local(tensor) for name, tensor in super().state_tensors().items()}

    def distributed(self) -> Snapshot:
        """Weights and state with what is known of the other shards."""
        return Snapshot(super().weight_tensors(), super().state_tensors())

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Whether all weights of all processes are."""
        tensors = self.weight_tensors().values()
        finite = torch.stack([tensor.isfinite().all() for tensor in tensors]).all()
        mine = finite.to(self.device, torch.int32)
        torch.distributed.all_reduce(mine, torch.distributed.ReduceOp.MIN)
        return bool(mine)


@dataclass(frozen=True, slots=True)
class WholeState:
    """What a sharded optimiser has, as checkpoints have it: whole, in host memory.

    :param kept: as of `gather`; None can only be loaded into.
    """

    optimiser: ShardedAdamW
    kept: Snapshot | None = None

    @classmethod
    def gather(cls, optimiser: ShardedAdamW, *, keep: bool) -> WholeState:
        """A collective; `keep` as `gathered`."""
        found, device = optimiser.distributed(), optimiser.device
        weights = gathered(found.weights, device, keep=keep)
        return cls(optimiser, Snapshot(weights, gathered(found.state, device, keep=keep)))

    def weight_tensors(self) -> Mapping[str, torch.Tensor]:
        """As `Checkpointed`, at the time of `gather`."""
        assert self.kept is not None, "what is written was gathered"
        return self.kept.weights

    def state_tensors(self) -> Mapping[str, torch.Tensor]:
        """As `weight_tensors`."""
        assert self.kept is not None, "what is written was gathered"
        return self.kept.state

    def alike(self) -> Snapshot:
        """Shapes and dtypes of the whole tensors."""
        found = self.optimiser.distributed()
        return Snapshot(_shapes(found.weights), _shapes(found.state))

    def restore(self, before: Snapshot) -> None:
        """Take this process's shards of whole tensors."""
        present = self.optimiser.distributed()
        self.optimiser.restore(
            Snapshot(_cut(before.weights, present.weights), _cut(before.state, present.state))
        )


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
