"""One training step, applied completely or not at all, and retried if memory ran out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from accelerate.utils import gather_object

from ajet_backend_trl.plan import Plan, make_plan
from ajet_backend_trl.policy import TrlPolicy
from ajet_backend_trl.stepped import Work
from ajet_backend_trl.tally import Tally
from ajet_backend_trl.zero import ZeroAdamW
from ajet_core.errors import TrainerError, WeightsLostError
from ajet_core.protocol import AlgorithmConfig
from ajet_core.timeline import TrainBatch
from ajet_torch.checkpoint import Progress
from ajet_torch.guard import Limits, StepGuard
from ajet_torch.memory import ALWAYS_COPIED, LEAST_BUDGET, free_memory, headline, is_out_of_memory
from ajet_torch.schedules import learning_rate
from ajet_training.rows import logprobs_by_call


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of training on a batch; fields as in `StepReport`.

    :param retries: how often memory ran out before the step succeeded.
    """

    metrics: dict[str, float]
    logprobs: list[list[float]]
    tokens_trained: int
    tokens_processed: int
    sequences: int
    retries: int


@dataclass(frozen=True, slots=True)
class BatchStep:
    """A training step on a valid batch.

    :param limit: as `TrlTrainerSettings.grad_norm_limit`.
    :param progress: the trainer's progress before this step.
    :param rehearsal: compute everything, but apply nothing.
    """

    policy: TrlPolicy
    algorithm: AlgorithmConfig
    limit: float | None
    batch: TrainBatch
    progress: Progress
    rehearsal: bool = False

    def apply(self) -> Applied:
        """Train, and retry with a smaller token budget if memory runs out.

        The smaller `TrlPolicy.token_budget` remains in effect. ``loss`` and ``grad_norm`` are means
        over optimiser steps, the other metrics over tokens. ``logprob_gap`` is measured on the
        first minibatch, which is computed before any weight changes.

        :raises StepRefusedError: the batch would have damaged the weights; nothing is changed.
        :raises WeightsLostError: an update failed half-way, or the weights were damaged before.
        :raises TrainerError: the step failed, or does not fit into memory with any budget; nothing
            is changed.
        """
        policy, number = self.policy, self.batch.step
        retries = 0
        budget = policy.token_budget
        while True:
            plan = self._plan(policy.token_budget)
            self._check_temperatures(plan)
            if not plan.computed:
                idle = {
                    "no_signal": 1.0,
                    "loss": 0.0,
                    "grad_norm": 0.0,
                    "learning_rate": self._rate,
                }
                return Applied(idle, [[] for _ in self.batch.calls], 0, 0, 0, retries)
            try:
                tally = self._attempt(plan)
            except Exception as error:
                if policy.optimiser.torn:
                    raise WeightsLostError(
                        f"step {number} failed while an update was applied or undone "
                        f"({headline(error)}); the weights are lost: continue from the last "
                        "checkpoint"
                    ) from error
                if isinstance(error, TrainerError):
                    raise
                if self._processes > 1:
                    policy.optimiser.torn = True
                    raise WeightsLostError(
                        f"step {number} failed on one of {self._processes} processes, so "
                        f"they are no longer in the same state ({headline(error)}): continue "
                        "from the last checkpoint. If memory ran out, set a smaller "
                        "algorithm.token_budget"
                    ) from error
                if not is_out_of_memory(error):
                    raise TrainerError(
                        f"step {number} failed, weights and optimiser are as before: "
                        f"{headline(error)}"
                    ) from error
                reason = headline(error)
            else:
                return self._applied(plan, tally, retries)
            # Outside the handler, where no reference to the tensors of the failed passes remains.
            free_memory(policy.device)
            lower = self._lower_budget(plan)
            if lower is None:
                tried, policy.token_budget = policy.token_budget, budget
                raise TrainerError(
                    f"step {number} does not fit into the memory of {policy.device}, even "
                    f"with a token budget of {tried} ({reason}); weights and optimiser are "
                    "as before. To reduce memory, set "
                    "trainer.settings.gradient_checkpointing, model.lora, or a smaller "
                    "timelines.max_tokens",
                    param="algorithm.token_budget",
                )
            policy.token_budget = lower
            retries += 1

    @property
    def _rate(self) -> float:
        return learning_rate(self.algorithm, self.progress.steps)

    @property
    def _processes(self) -> int:
        return int(self.policy.trainer.accelerator.num_processes)

    def _plan(self, budget: int) -> Plan:
        return make_plan(
            self.batch,
            self.algorithm,
            self.policy.objective,
            budget=budget,
            processes=self._processes,
            seed=f"{self.progress.seed}-{self.progress.steps}",
        )

    def _lower_budget(self, failed: Plan) -> int | None:
        """Return the next budget that makes micro-batches smaller, or None if there is none."""
        peak = failed.peak_tokens
        lower = min(self.policy.token_budget, peak) // 2
        while lower >= LEAST_BUDGET:
            if self._plan(lower).peak_tokens < peak:
                return lower
            lower //= 2
        return None

    def _check_temperatures(self, plan: Plan) -> None:
        if self.policy.has_linear_head:
            return
        if any(temperature != 1.0 for row in plan.rows for temperature in row.temperatures):
            raise TrainerError(
                f"step {self.batch.step} has calls with temperatures other than 1. The "
                "trainer applies the temperature to the input of the head of the model (and "
                "of its teacher), but this head has a bias or caps its logits: sample at "
                "temperature 1, or use the trainer 'torch'"
            )

    def _attempt(self, plan: Plan) -> Tally:
        """Return the tally of a step; errors restore everything, unless `MasterAdamW.torn`."""
        progress, optimiser, device = self.progress, self.policy.optimiser, self.policy.device
        steps = len(plan.minibatches)
        truncated = self.algorithm.importance == "truncated"
        tally = Tally(
            rows=plan.rows,
            guard=StepGuard(self.batch.step, steps, Limits(None, self.limit)),
            gap_version=progress.policy_version,
            means=self.policy.trainer.measures + (("kl",) if self.algorithm.kl_coef > 0 else ()),
            has_importance=truncated,
            rehearsal=self.rehearsal,
        )
        work = Work(
            plan=plan,
            tally=tally,
            seed=(progress.seed * 1_000_003 + progress.steps) % 2**63,
            learning_rate=self._rate,
            importance_cap=self.algorithm.importance_cap if truncated else None,
            max_update_kl=self.policy.max_update_kl,
        )
        # A single refused update is never applied, except by DeepSpeed.
        applied = steps > 1 or isinstance(optimiser, ZeroAdamW)
        before = optimiser.snapshot() if applied or optimiser.size <= ALWAYS_COPIED else None
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                self.policy.trainer.loop.run(work)
            if tally.refused is not None:
                raise tally.refused
            if not optimiser.is_finite():
                raise tally.guard.weights_refused()
            if self._processes > 1:
                mine = self.policy.trainer.accelerator.process_index
                tallies = gather_object([tally])
                tally.merge(tallies[:mine] + tallies[mine + 1 :])
            if self.rehearsal and before is not None and applied:
                # DeepSpeed has already applied its updates.
                optimiser.restore(before)
        except Exception as error:
            if self._processes > 1 and not isinstance(error, TrainerError):
                # The other processes are still computing. Collectives, which restoring may need,
                # would wait for them forever.
                optimiser.torn = True
                raise
            optimiser.zero_grad()
            if before is not None:
                optimiser.restore(before)
            elif tally.norms and tally.refused is None and not self.rehearsal:
                optimiser.torn = True
            if error is tally.refused and not optimiser.is_finite():
                raise WeightsLostError(
                    f"the weights were not finite before step {self.batch.step}; continue "
                    "from a checkpoint"
                ) from error
            raise
        return tally

    def _applied(self, plan: Plan, tally: Tally, retries: int) -> Applied:
        metrics = tally.metrics(self.algorithm.epochs)
        return Applied(
            metrics={"learning_rate": self._rate, "no_signal": 0.0, **metrics},
            logprobs=logprobs_by_call(
                self.batch, plan.rows, {n: v.tolist() for n, v in tally.known.items()}
            ),
            tokens_trained=sum(plan.rows[number].sampled for number in plan.computed),
            tokens_processed=tally.processed,
            sequences=len(plan.computed),
            retries=retries,
        )
