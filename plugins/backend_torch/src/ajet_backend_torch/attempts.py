"""One training step, applied as a whole and retried with smaller passes if memory runs out.

A failure before the first optimiser step changes nothing, so nothing has to be restored. For later
failures, weights and optimiser state are copied to host memory, except when there is only one
optimiser step and the copy would be large. All checks of the batch have passed before that step; if
it fails nevertheless, the weights are lost (`WeightsLostError`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ajet_backend_torch.policy import TrainedPolicy
from ajet_backend_torch.update import BatchUpdate, Minibatch
from ajet_core.errors import StepRefusedError, TrainerError, WeightsLostError
from ajet_core.protocol import AlgorithmConfig
from ajet_core.timeline import TrainBatch
from ajet_torch.checkpoint import Progress
from ajet_torch.guard import Limits, StepGuard
from ajet_torch.memory import (
    ALWAYS_COPIED,
    LEAST_BUDGET,
    free_memory,
    headline,
    is_out_of_memory,
)
from ajet_torch.optimiser import Snapshot
from ajet_torch.schedules import learning_rate
from ajet_torch.update_limit import limit_of, shorten_to


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of training on a batch.

    :param logprobs: as in `StepReport.logprobs`.
    :param retries: how often memory ran out before the step succeeded.
    """

    update: BatchUpdate
    metrics: dict[str, float]
    logprobs: list[list[float]]
    retries: int


def train_on(
    policy: TrainedPolicy,
    algorithm: AlgorithmConfig,
    limits: Limits,
    batch: TrainBatch,
    progress: Progress,
    *,
    rehearsal: bool = False,
) -> Applied:
    """Train on a valid batch, and retry with a smaller token budget if memory runs out.

    The smaller `TrainedPolicy.token_budget` remains in effect. ``loss`` and ``grad_norm`` are means
    over optimiser steps, the other metrics over tokens. ``logprob_gap`` is measured on the first
    minibatch, which is computed before any weight changes. ``kl`` is present only with a KL term,
    ``logprob_gap`` only if that minibatch has tokens of the present weights, and the metrics of
    importance weights only if there are any.

    :param progress: the trainer's progress before this step.
    :param rehearsal: compute everything, but apply nothing.
    :raises StepRefusedError: the batch would have damaged the weights; nothing is changed.
    :raises WeightsLostError: an update failed half-way (`MasterAdamW.torn`), or the weights were
        damaged before.
    :raises TrainerError: the step failed, or does not fit into memory with any budget; nothing is
        changed.
    """
    retries = 0
    budget = policy.token_budget
    while True:
        update = BatchUpdate(policy, algorithm, batch)
        if not update.trees:
            rate = learning_rate(algorithm, progress.steps)
            idle = {"no_signal": 1.0, "loss": 0.0, "grad_norm": 0.0, "learning_rate": rate}
            return Applied(update, idle, update.logprobs(), retries)
        try:
            metrics, logprobs = _attempt(
                policy, algorithm, limits, update, progress, rehearsal=rehearsal
            )
        except Exception as error:
            if policy.optimiser.torn:
                raise WeightsLostError(
                    f"step {batch.step} failed while an update was applied or undone "
                    f"({headline(error)}); the weights are lost: continue from the last checkpoint"
                ) from error
            if isinstance(error, TrainerError):
                raise
            if not is_out_of_memory(error):
                raise TrainerError(
                    f"step {batch.step} failed, weights and optimiser are as before: "
                    f"{headline(error)}"
                ) from error
            reason = headline(error)
        else:
            return Applied(update, metrics, logprobs, retries)
        # Outside the handler, where no reference to the tensors of the failed passes remains.
        lower = _lower_budget(update, policy.token_budget)
        del update
        free_memory(policy.device)
        if lower is None:
            tried, policy.token_budget = policy.token_budget, budget
            raise _too_large(policy, batch, tried, reason)
        policy.token_budget = lower
        retries += 1


def _attempt(
    policy: TrainedPolicy,
    algorithm: AlgorithmConfig,
    limits: Limits,
    update: BatchUpdate,
    progress: Progress,
    *,
    rehearsal: bool,
) -> tuple[dict[str, float], list[list[float]]]:
    """Return metrics and logprobs of a step.

    If it raises an exception, everything is restored, unless `MasterAdamW.torn`.
    """
    step, seed, done = update.batch.step, progress.seed, progress.steps
    rate = learning_rate(algorithm, done)
    plan: list[tuple[int, Minibatch]] = []
    for epoch in range(algorithm.epochs):
        shuffling = random.Random(f"{seed}-{done}-{epoch}")  # noqa: S311
        plan.extend((epoch, minibatch) for minibatch in update.minibatches(shuffling))
    first = [minibatch for epoch, minibatch in plan if not epoch]
    unscored = update.unscored(first, len(plan))
    guard = StepGuard(step, len(plan), limits)
    optimiser = policy.optimiser
    limit = limit_of(algorithm)
    before: Snapshot | None = None
    changed = False
    try:
        if unscored < len(first):
            guard.check_scores(update.score(first[unscored:]))
        with policy.training((seed * 1_000_003 + done) % 2**63):
            for number, (_, minibatch) in enumerate(plan):
                accumulated = update.accumulate(
                    minibatch,
                    gap_version=None if number else progress.policy_version,
                    report=number < unscored,
                )
                update.totals.norms.append(guard.check(number, accumulated, optimiser.clip()))
                if rehearsal:
                    optimiser.zero_grad()
                    continue
                if not number and (len(plan) > 1 or optimiser.size <= ALWAYS_COPIED):
                    before = optimiser.snapshot()
                changed = True
                sampling = random.Random(f"{seed}-{done}-{number}")  # noqa: S311
                _apply(policy, update, minibatch, rate=rate, limit=limit, sampling=sampling)
        if not optimiser.is_finite():
            raise guard.weights_refused()
        metrics = {"learning_rate": rate, "no_signal": 0.0, **update.totals.metrics()}
        return metrics, update.logprobs()
    except Exception as error:
        if before is not None:
            optimiser.restore(before)
        elif changed:
            optimiser.torn = True
        if not changed and isinstance(error, StepRefusedError) and not optimiser.is_finite():
            raise WeightsLostError(
                f"the weights were not finite before step {step}; continue from a checkpoint"
            ) from error
        raise


def _apply(
    policy: TrainedPolicy,
    update: BatchUpdate,
    minibatch: Minibatch,
    *,
    rate: float,
    limit: float,
    sampling: random.Random,
) -> None:
    """Apply one optimiser step, shortened to `AlgorithmConfig.max_update_kl`.

    :param limit: 0 for no limit.
    """
    optimiser = policy.optimiser
    if not limit:
        optimiser.step(rate)
        optimiser.zero_grad()
        return
    sample = update.divergence_sample(minibatch, sampling)
    if policy.has_dropout:
        update.note_before(sample)
    optimiser.step(rate)
    moved, shortened = shorten_to(limit, lambda: update.divergence(sample), optimiser.shorten)
    update.totals.shortened += shortened
    optimiser.zero_grad()
    update.totals.moves.append(moved)


def _lower_budget(update: BatchUpdate, budget: int) -> int | None:
    """Return the next budget that makes passes smaller, or None if there is none."""
    peak = update.peak_tokens(budget)
    lower = min(budget, peak) // 2
    while lower >= LEAST_BUDGET:
        if update.peak_tokens(lower) < peak:
            return lower
        lower //= 2
    return None


def _too_large(policy: TrainedPolicy, batch: TrainBatch, tried: int, reason: str) -> TrainerError:
    return TrainerError(
        f"step {batch.step} does not fit into the memory of {policy.device}, even with a "
        f"token budget of {tried} ({reason}); weights and optimiser are as before. To reduce "
        "memory, set trainer.settings.gradient_checkpointing, model.lora, model.dtype to "
        "bfloat16, or a smaller timelines.max_tokens or model.max_context; or reduce the "
        "memory of an engine on the same device (max_requests, kv_tokens)",
        param="algorithm.token_budget",
    )
