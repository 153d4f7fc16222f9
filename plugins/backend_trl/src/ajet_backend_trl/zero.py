"""Partitioning of weights and optimiser by DeepSpeed (ZeRO stages 2 and 3), set up by accelerate.

DeepSpeed is not a dependency of this plugin; it must be installed in the trainer's environment.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed
from accelerate import Accelerator, DeepSpeedPlugin, DistributedType
from accelerate.utils.deepspeed import DeepSpeedEngineWrapper
from torch import nn

from ajet_backend_trl.settings import DeepSpeedSettings
from ajet_backend_trl.sharding import become
from ajet_core.errors import ConfigError
from ajet_core.protocol import AlgorithmConfig
from ajet_torch.optimiser import Snapshot
from ajet_torch.update_clipping import UpdateClipping

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's state of each weight, besides the number of steps."""


def check_installed() -> None:
    """Check that DeepSpeed can be imported.

    :raises ConfigError: it cannot.
    """
    if importlib.util.find_spec("deepspeed") is None:
        raise ConfigError(
            "distribution 'deepspeed' requires DeepSpeed in the environment of the trainer, "
            f"but it is not installed: {sys.executable} -m pip install deepspeed",
            param="trainer.settings.distribution",
        )


def zero_config(
    options: DeepSpeedSettings, algorithm: AlgorithmConfig, *, bf16: bool
) -> dict[str, Any]:
    """Return the configuration of DeepSpeed."""
    zero: dict[str, Any] = {"stage": options.zero_stage, **options.zero_optimization}
    if options.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if options.offload_param:
        zero["offload_param"] = {"device": "cpu"}
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": bf16},
        "gradient_clipping": algorithm.max_grad_norm or 0.0,
        # accelerate sets the actual number of micro-batches before each backward pass.
        "gradient_accumulation_steps": 1,
        "train_micro_batch_size_per_gpu": 1,
        # DeepSpeed's own optimiser would have to be compiled.
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31,
    }


def adopt_plugin(accelerator: Accelerator, config: Mapping[str, Any]) -> None:
    """Make `accelerator` use DeepSpeed.

    accelerate decides this when a process creates its first accelerator, and never chooses it on a
    CPU. So this function sets the state that accelerate would set.
    """
    plugin = DeepSpeedPlugin(hf_ds_config=dict(config), zero3_init_flag=False)
    plugin.set_mixed_precision("bf16" if config["bf16"]["enabled"] else "no")
    accelerator.state.deepspeed_plugins = plugin
    detach(accelerator)
    become(accelerator, DistributedType.DEEPSPEED)


def attach(accelerator: Any, engine: object) -> None:
    """Make `Accelerator.backward` use an engine."""
    accelerator.deepspeed_engine_wrapped = DeepSpeedEngineWrapper(engine)


def detach(accelerator: Any) -> None:
    """Detach the engine, so that `Accelerator.free_memory` does not destroy it.

    transformers calls that at the start of its loop.
    """
    accelerator.deepspeed_engine_wrapped = None


class ZeroAdamW:
    """AdamW on the flat pieces of float32 masters that DeepSpeed keeps in this process.

    Methods that return whole weights are collectives, and so are `is_finite` and `restore`.

    :param module: the whole model.
    :ivar torn: as `MasterAdamW.torn`.
    :ivar size: number of trained parameters, in all processes together.
    """

    def __init__(
        self,
        module: nn.Module,
        model: nn.Module,
        accelerator: Accelerator,
        algorithm: AlgorithmConfig,
    ) -> None:
        self.parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self.torn = False
        self.device = accelerator.device
        self._module = module
        self._shapes = {name: p.shape for name, p in self.parameters.items()}
        self.size = sum(p.numel() for p in self.parameters.values())
        trained = list(self.parameters.values())
        adamw = torch.optim.AdamW(
            [
                {
                    "params": [p for p in trained if p.dim() > 1],
                    "weight_decay": algorithm.weight_decay,
                },
                {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
            ],
            # DeepSpeed may take a step without gradients, to make the optimiser create its state.
            lr=0.0,
            betas=algorithm.adam_betas,
        )
        self.engine: Any
        self.engine, self.prepared = accelerator.prepare(model, adamw)
        self._zero = self.engine.optimizer
        # The attribute of stage 3, or that of stage 2.
        flat = getattr(self._zero, "fp32_partitioned_groups_flat", None)
        masters = flat or self._zero.single_partition_of_fp32_groups
        kept: Any = self._zero.optimizer.state
        for master in masters:
            state = kept[master]
            for key in MOMENTS:
                state.setdefault(key, torch.zeros_like(master)).zero_()
            state.setdefault("step", torch.zeros(())).zero_()
        if algorithm.max_update_rms:
            UpdateClipping(adamw, algorithm.max_update_rms, self._over_all)
        self._state: dict[torch.Tensor, dict[str, torch.Tensor]] = {m: kept[m] for m in masters}
        link = getattr(self._zero, "_lazy_init_hp_params_optimizer_state", None)
        if link is not None:
            link()
        self._kept: Snapshot | None = None

    def zero_grad(self) -> None:
        """Discard all gradients."""
        self._zero.zero_grad()

    def _over_all(self, sums: torch.Tensor) -> torch.Tensor:
        """Add up sums of this process's pieces over all processes."""
        total = sums.to(self.device)
        torch.distributed.all_reduce(total)
        return total

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Return whether all weights of all processes are finite."""
        finite = torch.stack([master.isfinite().all() for master in self._state]).all()
        mine = finite.to(self.device, torch.int32)
        torch.distributed.all_reduce(mine, torch.distributed.ReduceOp.MIN)
        return bool(mine)

    @torch.no_grad()
    def snapshot(self) -> Snapshot:
        """Copy this process's pieces to host memory; the next call overwrites the copy."""
        present = self._pieces()
        if self._kept is None:
            self._kept = Snapshot(
                *(
                    {n: torch.empty_like(t, device="cpu") for n, t in part.items()}
                    for part in (present.weights, present.state)
                )
            )
        _copy(present, self._kept)
        return self._kept

    @torch.no_grad()
    def restore(self, before: Snapshot) -> None:
        """Restore this process's pieces."""
        self.torn = True
        self.zero_grad()
        _copy(before, self._pieces())
        self._write_parameters()
        self.torn = False

    def weight_tensors(self) -> Mapping[str, torch.Tensor]:
        """Return the pieces of this process."""
        return self._pieces().weights

    def _pieces(self) -> Snapshot:
        weights = {str(place): master.detach() for place, master in enumerate(self._state)}
        state = {
            f"{place}/{key}": tensor
            for place, kept in enumerate(self._state.values())
            for key, tensor in kept.items()
        }
        return Snapshot(weights, state)

    # Whole tensors.

    @torch.no_grad()
    def gather(self, *, keep: bool) -> Snapshot:
        """Assemble weights and state in host memory.

        :param keep: False only takes part, and returns nothing.
        """
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        weights: dict[str, torch.Tensor] = {}
        state: dict[str, torch.Tensor] = {}
        for name, parameter in self.parameters.items():
            _keep(weights, name, safe_get_full_fp32_param(parameter), keep)
            for key in MOMENTS:
                moment = safe_get_full_optimizer_state(parameter, key)
                _keep(state, f"{name}/{key}", moment, keep)
            _keep(state, f"{name}/step", self._steps(), keep)
        return Snapshot(weights, state)

    def alike(self) -> Snapshot:
        """Return tensors without memory, with shapes and dtypes of the whole tensors."""
        state = {
            f"{name}/{key}": torch.empty(shape, device="meta")
            for name, shape in self._shapes.items()
            for key in MOMENTS
        }
        steps = {f"{name}/step": torch.empty((), device="meta") for name in self._shapes}
        weights = {n: torch.empty(shape, device="meta") for n, shape in self._shapes.items()}
        return Snapshot(weights, {**state, **steps})

    @torch.no_grad()
    def restore_whole(self, before: Snapshot) -> None:
        """Load this process's pieces from whole tensors."""
        self.torn = True
        self.zero_grad()
        for name, parameter in self.parameters.items():
            _set(parameter, before.weights[name].to(self.device), None)
            for key in MOMENTS:
                _set(parameter, before.state[f"{name}/{key}"].to(self.device), key)
            steps = before.state[f"{name}/step"]
        for state in self._state.values():
            state["step"].copy_(steps)
        self._write_parameters()
        self.torn = False

    def model_weights(self, *, keep: bool) -> dict[str, torch.Tensor]:
        """Assemble the model's state in host memory, with trained weights in float32.

        :param keep: False only takes part, and returns nothing.
        """
        from deepspeed.runtime.zero import GatheredParameters
        from deepspeed.utils import safe_get_full_fp32_param

        weights: dict[str, torch.Tensor] = {}
        for name, parameter in self._module.named_parameters(remove_duplicate=False):
            if parameter.requires_grad:
                _keep(weights, name, safe_get_full_fp32_param(parameter), keep)
            else:
                with GatheredParameters([parameter]):
                    _keep(weights, name, parameter.detach(), keep)
        persistent = self._module.state_dict().keys()
        for name, buffer in self._module.named_buffers():
            if name in persistent:
                _keep(weights, name, buffer, keep)
        return weights

    def _steps(self) -> torch.Tensor:
        return next(iter(self._state.values()))["step"]

    def _write_parameters(self) -> None:
        """Copy the masters to the weights that passes use."""
        zero = self._zero
        if not hasattr(zero, "fp16_partitioned_groups_flat"):
            zero.update_lp_params()
            return
        for group in range(len(zero.fp16_partitioned_groups_flat)):
            zero._reassign_or_swap_out_partitioned_parameters(group)
        # Small weights are never partitioned.
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)


def _set(parameter: nn.Parameter, value: torch.Tensor, key: str | None) -> None:
    """Set this process's part of a whole weight, or of its moment `key`."""
    from deepspeed import utils

    partition = getattr(parameter, "ds_tensor", None)
    if partition is None:
        if key is None:
            utils.safe_set_full_fp32_param(parameter, value)
        else:
            utils.safe_set_full_optimizer_state(parameter, value, key)
        return
    # Stage 3 pads weights to parts of equal size, which DeepSpeed's setter of whole values does
    # not.
    size, rank = partition.numel(), torch.distributed.get_rank()
    padded = value.new_zeros(size * torch.distributed.get_world_size())
    padded[: value.numel()] = value.flatten()
    mine = padded[size * rank : size * (rank + 1)]
    if key is None:
        utils.safe_set_local_fp32_param(parameter, mine)
    else:
        utils.safe_set_local_optimizer_state(parameter, mine, key)


def _keep(into: dict[str, torch.Tensor], name: str, tensor: torch.Tensor, keep: bool) -> None:
    if keep:
        into[name] = tensor.detach().cpu().clone()


def _copy(source: Snapshot, target: Snapshot) -> None:
    for theirs, ours in ((source.weights, target.weights), (source.state, target.state)):
        for name, tensor in ours.items():
            tensor.copy_(theirs[name])
