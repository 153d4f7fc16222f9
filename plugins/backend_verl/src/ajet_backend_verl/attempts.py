"""One training step, applied completely or not at all, and retried if memory ran out.

Import this module after `ajet_backend_verl.surroundings.prepare`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ajet_backend_verl.advantages import estimated
from ajet_backend_verl.configs import correction_config, estimator_config
from ajet_backend_verl.correction import Corrected, corrected
from ajet_backend_verl.part import Floats, MinibatchResult, Orders, WorkerFailure
from ajet_backend_verl.plan import Minibatch, Plan, make_plan, rows_to_train, shares
from ajet_backend_verl.policy import VerlPolicy
from ajet_backend_verl.settings import VerlTrainerSettings
from ajet_backend_verl.tally import Tally, importance_metrics
from ajet_backend_verl.tensors import Known, by_row, score_data, update_data
from ajet_core.errors import StepRefusedError, TrainerError, WeightsLostError
from ajet_core.protocol import AlgorithmConfig
from ajet_core.timeline import TrainBatch
from ajet_torch.checkpoint import Progress
from ajet_torch.guard import Limits, StepGuard
from ajet_torch.memory import ALWAYS_COPIED
from ajet_torch.schedules import learning_rate
from ajet_torch.update_limit import MOVED_TOKENS, limit_of, shorten_to
from ajet_training.rows import Row, logprobs_by_call


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

    :param progress: the trainer's progress before this step.
    :param rehearsal: compute everything, but apply nothing.
    """

    policy: VerlPolicy
    algorithm: AlgorithmConfig
    options: VerlTrainerSettings
    batch: TrainBatch
    progress: Progress
    rehearsal: bool = False

    def apply(self) -> Applied:
        """Train, and retry with a smaller token budget if memory runs out.

        The smaller `VerlPolicy.token_budget` remains in effect. ``loss`` and ``grad_norm`` are
        means over optimiser steps, the other metrics over tokens. ``logprob_gap`` is measured on
        the first minibatch, which is computed before any weight changes.

        :raises StepRefusedError: the batch would have damaged the weights; nothing is changed.
        :raises WeightsLostError: a worker is gone, an update failed half-way, or the weights were
            damaged before.
        :raises TrainerError: the step failed, or does not fit into memory with any budget; nothing
            is changed.
        """
        policy, number = self.policy, self.batch.step
        rows = rows_to_train(self.batch)
        if self.options.adv_estimator is not None:
            rows = estimated(self.batch, rows, estimator_config(self.options))
            self._check_advantages(rows)
        plan = make_plan(
            self.batch,
            rows,
            self.algorithm,
            self.options,
            seed=f"{self.progress.seed}-{self.progress.steps}",
        )
        if not plan.computed:
            idle = {"no_signal": 1.0, "loss": 0.0, "grad_norm": 0.0, "learning_rate": self._rate}
            return Applied(idle, [[] for _ in self.batch.calls], 0, 0, 0, 0)
        retries = 0
        budget = policy.token_budget
        while True:
            try:
                return self._applied(plan, *self._attempt(plan), retries)
            except WorkerFailure as failure:
                if not failure.memory:
                    raise TrainerError(
                        f"step {number} failed, weights and optimiser are as before: "
                        f"{failure.message}"
                    ) from failure
                reason = failure.message
            policy.workers.free()
            peak = min(policy.token_budget, self._most_tokens(plan))
            # A row cannot be divided.
            lower = max(peak // 2, plan.longest)
            if lower >= peak:
                tried, policy.token_budget = policy.token_budget, budget
                raise TrainerError(
                    f"step {number} does not fit into the memory of {policy.device}, even "
                    f"with a token budget of {tried} ({reason}); weights and optimiser are "
                    "as before. To reduce memory, set "
                    "trainer.settings.gradient_checkpointing, "
                    "trainer.settings.workers_per_node or nodes, model.lora, or a smaller "
                    "timelines.max_tokens",
                    param="algorithm.token_budget",
                )
            policy.token_budget = lower
            retries += 1

    @property
    def _rate(self) -> float:
        return learning_rate(self.algorithm, self.progress.steps)

    def _check_advantages(self, rows: Sequence[Row]) -> None:
        for row in rows:
            wrong = [a for a in row.advantages if not math.isfinite(a)]
            if wrong:
                raise StepRefusedError(
                    f"step {self.batch.step} was refused before anything was computed: "
                    f"verl's estimator {self.options.adv_estimator} gave the advantage "
                    f"{wrong[0]} to a token of episode "
                    f"{self.batch.episodes[row.episode].episode_id}. Check for rewards that "
                    "are too large"
                )

    def _most_tokens(self, plan: Plan) -> int:
        """Return the tokens of the largest part of a minibatch that one worker computes."""
        sizes = [
            sum(plan.rows[number].tokens for number in share if number is not None)
            for minibatch in plan.minibatches
            for share in shares(plan.rows, minibatch.rows, self.policy.workers.count)
        ]
        return max(sizes)

    def _attempt(self, plan: Plan) -> tuple[Tally, Corrected]:
        """Return the results of a step; errors except `WeightsLostError` restore everything."""
        policy, workers = self.policy, self.policy.workers
        steps = len(plan.minibatches)
        guard = StepGuard(self.batch.step, steps, Limits(None, self.options.grad_norm_limit))
        # A single refused update is never applied.
        copied = not self.rehearsal and (steps > 1 or policy.trained <= ALWAYS_COPIED)
        changed = False
        limit = limit_of(self.algorithm)
        try:
            known, tally, correction = self._before(plan)
            if copied:
                workers.keep()
            for number, minibatch in enumerate(plan.minibatches):
                done, logprobs = self._update(plan, minibatch, number, known)
                if done.refused:
                    raise StepRefusedError(done.refused)
                changed = not self.rehearsal
                tally.add(done, logprobs)
                if limit and changed:
                    self._limit(limit, plan, number, logprobs, tally)
            if not workers.is_finite():
                raise guard.weights_refused()
        except WeightsLostError:
            raise
        except (TrainerError, WorkerFailure) as error:
            self._undo(changed=changed, copied=copied, error=error)
            raise
        return tally, correction

    def _undo(self, *, changed: bool, copied: bool, error: Exception) -> None:
        policy, number = self.policy, self.batch.step
        try:
            if changed and copied:
                policy.workers.restore()
            elif changed:
                policy.lose(f"step {number} failed after weights had changed ({error})")
            elif isinstance(error, StepRefusedError) and not policy.workers.is_finite():
                policy.lose(f"they were not finite before step {number}")
        except WorkerFailure as failure:
            policy.lose(f"step {number} could not be undone ({failure.message})")
        if policy.lost:
            raise WeightsLostError(
                f"the weights are lost, {policy.lost}; continue from a checkpoint"
            ) from error

    def _before(self, plan: Plan) -> tuple[Known, Tally, Corrected]:
        """Compute what is needed before the first optimiser step."""
        config = correction_config(self.algorithm, self.options)
        old: dict[int, Floats] = {}
        if config is not None and not config.bypass_mode:
            old = self._scored(plan, plan.computed, reference=False)
        reference = (
            self._scored(plan, plan.computed, reference=True) if self.algorithm.kl_coef > 0 else {}
        )
        correction = Corrected()
        if config is not None and old:
            correction = corrected(plan.rows, plan.computed, old, config)
        tally = Tally(plan.rows, self.progress.policy_version, old)
        if old:
            tally.score(old)
        return Known(old, reference, correction.importance, correction.masks), tally, correction

    def _scored(self, plan: Plan, rows: Sequence[int], *, reference: bool) -> dict[int, Floats]:
        policy = self.policy
        parts = shares(plan.rows, rows, policy.workers.count)
        data = [score_data(plan.rows, part, max_tokens=policy.token_budget) for part in parts]
        scored = policy.workers.score(data, reference=reference)
        return _joined(plan.rows, parts, scored)

    def _update(
        self, plan: Plan, minibatch: Minibatch, number: int, known: Known
    ) -> tuple[MinibatchResult, dict[int, Floats]]:
        policy = self.policy
        parts = shares(plan.rows, minibatch.rows, policy.workers.count)
        data = [
            update_data(plan.rows, part, known, minibatch.weights, max_tokens=policy.token_budget)
            for part in parts
        ]
        # Rejected tokens do not count in a mean over tokens, as in verl.
        rejected = sum(
            plan.rows[row].sampled - sum(known.masks[row])
            for row in minibatch.rows
            if row in known.masks
        )
        orders = Orders(
            step=self.batch.step,
            number=number,
            steps=len(plan.minibatches),
            tokens=max(1, minibatch.tokens - rejected),
            rows=minibatch.count,
            learning_rate=self._rate,
            grad_norm_limit=self.options.grad_norm_limit,
            rehearsal=self.rehearsal,
        )
        done = policy.workers.update(data, orders)
        return done[0], _joined(plan.rows, parts, [each.logprobs for each in done])

    def _limit(
        self, limit: float, plan: Plan, number: int, before: Mapping[int, Floats], tally: Tally
    ) -> None:
        """Shorten the update just applied for a minibatch to `AlgorithmConfig.max_update_kl`.

        :param before: [C] by row, logprobs before the update.
        """
        seed = f"{self.progress.seed}-{self.progress.steps}-{number}"
        sampling = random.Random(seed)  # noqa: S311
        rows = plan.minibatches[number].rows
        sample: list[int] = []
        tokens = 0
        for row in sampling.sample(rows, len(rows)):
            if tokens >= MOVED_TOKENS:
                break
            sample.append(row)
            tokens += plan.rows[row].tokens

        def divergence() -> float:
            now = self._scored(plan, sample, reference=False)
            changes = [(now[row] - before[row])[np.array(plan.rows[row].mask)] for row in sample]
            return float(np.square(np.concatenate(changes), dtype=np.float64).mean()) / 2

        moved, shortened = shorten_to(limit, divergence, self.policy.workers.shorten)
        tally.moves.append(moved)
        tally.shortened += shortened

    def _applied(self, plan: Plan, tally: Tally, correction: Corrected, retries: int) -> Applied:
        metrics = tally.metrics(has_kl=self.algorithm.kl_coef > 0)
        if self.algorithm.importance == "truncated":
            cap = self.algorithm.importance_cap
            metrics.update(importance_metrics(plan.rows, tally.old, cap))
        left = {number: sum(mask) for number, mask in correction.masks.items()}
        trained = sum(left.get(number, plan.rows[number].sampled) for number in plan.computed)
        return Applied(
            metrics={
                "learning_rate": self._rate,
                "no_signal": 0.0,
                **metrics,
                **(correction.metrics if self.options.correction else {}),
            },
            logprobs=logprobs_by_call(
                self.batch, plan.rows, {n: v.tolist() for n, v in tally.known.items()}
            ),
            tokens_trained=trained,
            tokens_processed=tally.processed,
            sequences=len(plan.computed),
            retries=retries,
        )


def _joined(
    rows: Sequence[Row], parts: Sequence[Sequence[int | None]], by_part: Sequence[Floats]
) -> dict[int, Floats]:
    return {
        number: values
        for part, values_of_part in zip(parts, by_part, strict=True)
        for number, values in by_row(rows, part, values_of_part).items()
    }
