"""A worker on Ray: verl's `TrainingWorker`, which computes and applies minibatches on command.

All workers do the same at the same time. Their decisions depend only on numbers that are equal on
all of them, so that all of them apply a gradient, or none.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed
from tensordict import TensorDict
from torch.distributed.fsdp import FSDPModule
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils as tu
from verl.utils.distributed import initialize_global_process_group_ray
from verl.utils.fsdp_utils import fsdp2_clip_grad_norm_
from verl.workers.config import FSDPActorConfig, TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding

from ajet_backend_verl.logprobs import use_chunks
from ajet_backend_verl.objective import Objective
from ajet_backend_verl.part import SUMS, Floats, MinibatchResult, Orders, WorkerFailure
from ajet_backend_verl.shards import Described, Kind, Plain, Shards, described, gather
from ajet_core.errors import StepRefusedError
from ajet_torch.guard import Accumulated, Limits, StepGuard
from ajet_torch.memory import free_memory, headline, is_out_of_memory
from ajet_torch.models import disable_own_dropout
from ajet_torch.optimiser import drop_gathered
from ajet_torch.update_clipping import UpdateClipping
from ajet_torch.update_limit import LastUpdate

Method = TypeVar("Method", bound=Callable[..., object])


def on_all(method: Method) -> Method:
    """Mark a method to be called on all workers with the same arguments."""
    registered: Method = register(dispatch_mode=Dispatch.ONE_TO_ALL)(method)
    return registered


def on_each(method: Method) -> Method:
    """Mark a method to be called on all workers, each with its item of a list for each argument."""
    registered: Method = register(dispatch_mode=Dispatch.DP_COMPUTE)(method)
    return registered


class VerlWorker(TrainingWorker):  # type: ignore[misc]
    """One of the workers.

    :param config: configuration of verl's worker.
    :param reference: configuration of the reference model; None if there is none, or if it is the
        model without adapters.
    :param cuda: whether the worker has a GPU.
    :param seed: seed of the adapters' initial weights.
    """

    def __init__(
        self,
        config: TrainingWorkerConfig,
        reference: TrainingWorkerConfig | None,
        *,
        cuda: bool,
        seed: int,
    ) -> None:
        use_chunks()
        if not cuda:
            # verl would create gloo twice, once for each of the two devices that it assumes.
            initialize_global_process_group_ray(backend="gloo")
        super().__init__(config)
        self._device = (
            torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
        )
        self._reference = None if reference is None else TrainingWorker(reference)
        self._seed = seed
        self._shards: Shards
        self._last_update: LastUpdate
        self._objective: Objective

    @on_all
    def begin(self, max_update_rms: float) -> dict[str, int]:
        """Load the model; return the numbers of all parameters and of trained parameters."""
        with self._failing():
            torch.manual_seed(self._seed)
            self.reset()
            if self._reference is not None:
                self._reference.reset()
            module = self.engine.module
            disable_own_dropout(module)
            self._last_update = LastUpdate(self.engine.optimizer)
            if max_update_rms:
                UpdateClipping(self.engine.optimizer, max_update_rms)
            self._shards = Shards(module, self.engine.optimizer)
            return {
                "parameters": sum(parameter.numel() for parameter in module.parameters()),
                "trained": self._shards.size(),
            }

    @on_all
    def aim(self, actor: FSDPActorConfig, *, weighs_itself: bool) -> None:
        """Set the loss to minimise."""
        with self._failing():
            self._objective = Objective(actor, weighs_itself)

    @on_each
    def score(self, rows: TensorDict) -> Floats:
        """Return [R, C] logprobs under the present weights."""
        with self._failing():
            return self._scored(self, rows, without_adapters=False)

    @on_each
    def score_reference(self, rows: TensorDict) -> Floats:
        """Return [R, C] logprobs under the reference model."""
        with self._failing():
            return self._scored(
                self._reference or self, rows, without_adapters=self._reference is None
            )

    @staticmethod
    def _scored(by: TrainingWorker, rows: TensorDict, *, without_adapters: bool) -> Floats:
        tu.assign_non_tensor(
            rows, calculate_entropy=False, compute_loss=False, no_lora_adapter=without_adapters
        )
        output = by.infer_batch(rows)
        drop_gathered(by.engine.module)
        logprobs = no_padding_2_padding(tu.get(output, "log_probs"), rows)
        return logprobs.float().numpy()  # type: ignore[no-any-return]

    @on_each
    def update(self, rows: TensorDict, orders: Orders) -> MinibatchResult:
        """Compute the gradient of a minibatch, and apply it unless it is refused."""
        with self._failing():
            return self._updated(rows, orders)

    def _updated(self, rows: TensorDict, orders: Orders) -> MinibatchResult:
        engine = self.engine
        tu.assign_non_tensor(
            rows,
            calculate_entropy=True,
            compute_loss=True,
            return_model_output=True,
            minibatch_tokens=orders.tokens,
            minibatch_rows=orders.rows,
            use_remove_padding=self.model_config.use_remove_padding,
            use_dynamic_bsz=True,
            use_fused_kernels=False,
        )
        self._objective.begin()
        with engine.train_mode():
            engine.optimizer_zero_grad()
            output = engine.forward_backward_batch(rows, loss_function=self._objective)
            logprobs = no_padding_2_padding(output["model_output"]["log_probs"], rows)
            loss, sums = self._summed(math.fsum(output["loss"]))
            # An infinite limit clips nothing: only the norm is needed.
            norm = fsdp2_clip_grad_norm_(engine.module.parameters(), max_norm=math.inf)
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            refused = self._refused(orders, loss, sums["logprob"], norm)
            if not refused and not orders.rehearsal:
                for group in engine.optimizer.param_groups:
                    group["lr"] = orders.learning_rate
                engine.optimizer_step()
            elif orders.rehearsal:
                engine.optimizer_zero_grad()
        return MinibatchResult(logprobs.float().cpu().numpy(), loss, float(norm), sums, refused)

    def _summed(self, loss: float) -> tuple[float, dict[str, float]]:
        """Return loss and sums over all workers."""
        numbers = [loss / torch.distributed.get_world_size(), *self._objective.sums.values()]
        total = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(total)
        sums = total.tolist()
        return sums[0], dict(zip(SUMS, sums[1:], strict=True))

    @staticmethod
    def _refused(orders: Orders, loss: float, logprobs: float, norm: torch.Tensor) -> str:
        guard = StepGuard(orders.step, orders.steps, Limits(None, orders.grad_norm_limit))
        accumulated = Accumulated(
            loss=torch.tensor(loss, dtype=torch.float64),
            logprob_sum=torch.tensor(logprobs, dtype=torch.float64),
            expected_loss=0.0,
        )
        try:
            guard.check(orders.number, accumulated, norm.detach().cpu())
        except StepRefusedError as refusal:
            return refusal.message
        return ""

    @on_all
    def shorten(self, share: float) -> None:
        """Undo a share of the last update."""
        with self._failing():
            self._last_update.shorten(share)

    @on_all
    def keep(self) -> None:
        """Copy weights and optimiser to host memory."""
        with self._failing():
            self._shards.keep()

    @on_all
    def restore(self) -> None:
        """Restore the copy of `keep`."""
        with self._failing():
            self._shards.restore()

    @on_all
    def is_finite(self) -> bool:
        """Return whether the weights of this worker are finite."""
        with self._failing():
            return self._shards.is_finite()

    @on_all
    def describe(self, kind: Kind | None) -> dict[str, Described]:
        """Describe the whole tensors; None selects the model's state dict."""
        with self._failing():
            return described(self._tensors(kind))

    @on_all
    def fetch(self, kind: Kind | None, names: list[str]) -> dict[str, Plain]:
        """Return whole tensors from the first worker; the others return nothing."""
        with self._failing():
            return gather(self._tensors(kind), names, self._device, wanted=self.rank == 0)

    @on_all
    def put(self, kind: Kind, whole: dict[str, Plain]) -> None:
        """Load this worker's share from whole tensors."""
        with self._failing():
            self._shards.put(kind, whole)

    @on_all
    def free(self) -> None:
        """Free the memory of failed passes."""
        free_memory(self._device)

    def _tensors(self, kind: Kind | None) -> dict[str, torch.Tensor]:
        return self._shards.model() if kind is None else self._shards.tensors(kind)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn any exception into one that every process can unpickle."""
        reason: tuple[str, bool] | None = None
        try:
            yield
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            reason = headline(error), is_out_of_memory(error)
        # Outside the handler, where no reference to the tensors of failed passes remains.
        if reason is not None:
            lost = not all(_forget_pass(part) for part in self._modules())
            raise WorkerFailure(reason[0], memory=reason[1], lost=lost)

    def _modules(self) -> list[torch.nn.Module]:
        engines = [by.engine for by in (self, self._reference) if by is not None]
        return [engine.module for engine in engines if hasattr(engine, "module")]


def _forget_pass(module: Any) -> bool:
    """Make FSDP discard a pass that ended half-way, in which weights are whole instead of sharded.

    :return: whether it succeeded; torch before 2.13 does not support it.
    """
    try:
        module.reset_iter_state()
        for part in module.modules():
            if not isinstance(part, FSDPModule):
                continue
            for group in part._get_fsdp_state()._fsdp_param_groups:
                for parameter in group.fsdp_params:
                    # Accumulated gradients that were to be reduced with those of the last
                    # micro-batch; FSDP keeps no other reference.
                    parameter.unsharded_accumulated_grad = None
                    if hasattr(parameter, "_unsharded_param"):
                        parameter._unsharded_param.grad = None
    except AttributeError:
        return False
    return True
