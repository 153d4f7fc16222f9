"""One batch's policy update: what is trained, in which order, and what is reported of it.

- Advantages compare the episodes of a group (`ajet_core.timeline.credit`); every trained token of an
  episode's sequences has its episode's advantage.
- Sequences whose advantage is 0 are left out, unless a KL or entropy term gives them a gradient. Means
  are taken over the tokens and sequences of a minibatch that are trained, so that what is left out does
  not dilute the rest.
- The learning rate rises over `AlgorithmConfig.warmup_steps` steps, not optimiser steps.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ajet_backend_torch.losses import clipped_surrogate, k3
from ajet_backend_torch.packing import MicroBatch, TrainRow, micro_batches, minibatches
from ajet_backend_torch.policy import TrainedPolicy
from ajet_core.errors import TrainerError
from ajet_core.protocol.run import AlgorithmConfig
from ajet_core.timeline import TrainBatch, TrainSequence
from ajet_core.timeline.credit import episode_advantages

SUMS = ("loss", "entropy", "kl", "clipped", "ratio")


def usable_rows(
    batch: TrainBatch, algorithm: AlgorithmConfig, vocab_size: int
) -> tuple[list[TrainRow], list[float]]:
    """The sequences with trained tokens, and the advantages [episodes] of all episodes.

    :raises TrainerError: a sequence is malformed.
    """
    advantages = episode_advantages(batch.episodes, algorithm.advantage)
    rows: list[TrainRow] = []
    for index, sequence in enumerate(batch.sequences):
        problem = _problem(sequence, len(batch.episodes), vocab_size)
        if problem:
            raise TrainerError(f"batch {batch.batch_id}, sequence {index}: {problem}")
        row = TrainRow(sequence=sequence, advantage=advantages[sequence.episode])
        if row.trained:
            rows.append(row)
    return rows, advantages


def has_loss(row: TrainRow, algorithm: AlgorithmConfig) -> bool:
    """Whether the row adds anything to loss or gradient.

    A row without advantage adds nothing to the policy term. It counts in what the loss is divided by
    all the same, so that the loss does not depend on whether it is computed.
    """
    return row.advantage != 0 or algorithm.kl_coef > 0 or algorithm.entropy_coef > 0


def _problem(sequence: TrainSequence, episodes: int, vocab_size: int) -> str:
    size = len(sequence.token_ids)
    for name in ("loss_mask", "behaviour_logprobs", "temperatures", "policy_versions"):
        if len(getattr(sequence, name)) != size:
            return f"{size} token ids, but {len(getattr(sequence, name))} {name}"
    if not 0 <= sequence.episode < episodes:
        return f"it names episode {sequence.episode} of {episodes}"
    if size and not (min(sequence.token_ids) >= 0 and max(sequence.token_ids) < vocab_size):
        return f"a token id is outside the model's vocabulary of {vocab_size}"
    if any(temperature <= 0 for temperature in sequence.temperatures):
        return "a temperature is not above 0"
    return ""


def learning_rate(algorithm: AlgorithmConfig, steps_done: int) -> float:
    """The learning rate of the step after `steps_done` steps."""
    if not algorithm.warmup_steps:
        return algorithm.learning_rate
    return algorithm.learning_rate * min(1.0, (steps_done + 1) / algorithm.warmup_steps)


def advantage_metrics(advantages: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation over the episodes of a batch."""
    count = len(advantages)
    mean = math.fsum(advantages) / count if count else 0.0
    square = math.fsum((a - mean) ** 2 for a in advantages) / count if count else 0.0
    return {"advantage_mean": mean, "advantage_std": math.sqrt(square)}


@dataclass(slots=True)
class _Totals:
    """What the passes of a batch add up to, on the device until it is asked for."""

    device: torch.device
    sums: torch.Tensor = field(init=False)
    ratio_max: torch.Tensor = field(init=False)
    has_reference: bool = False
    gap: torch.Tensor | None = None
    tokens: int = 0
    processed: int = 0
    norms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=self.device)
        self.ratio_max = torch.zeros((), device=self.device)

    def widen_gap(self, gap: torch.Tensor) -> None:
        self.gap = gap if self.gap is None else torch.maximum(self.gap, gap)

    def metrics(self) -> dict[str, float]:
        sums = dict(zip(SUMS, self.sums.tolist(), strict=True))
        found = {
            "loss": sums["loss"] / len(self.norms),
            "entropy": sums["entropy"] / self.tokens,
            "clip_fraction": sums["clipped"] / self.tokens,
            "ratio_mean": sums["ratio"] / self.tokens,
            "ratio_max": float(self.ratio_max),
            "grad_norm": sum(self.norms) / len(self.norms),
        }
        if self.has_reference:
            found["kl"] = sums["kl"] / self.tokens
        if self.gap is not None:
            found["logprob_gap"] = float(self.gap)
        return found


def update_policy(
    policy: TrainedPolicy,
    algorithm: AlgorithmConfig,
    rows: Sequence[TrainRow],
    *,
    step: int,
    steps_done: int,
    policy_version: int,
    seed: int,
) -> tuple[dict[str, float], int]:
    """Train on one batch; if anything fails, weights and optimiser are put back.

    ``loss`` and ``grad_norm`` are means over optimiser steps, the other metrics over tokens;
    ``logprob_gap`` is measured on the first minibatch, which is computed before any weight changes.
    ``kl`` is only there with a KL term, ``logprob_gap`` only if that minibatch has tokens of the present
    weights.

    :param rows: at least one with a loss.
    :param policy_version: the one the present weights were published as.
    :return: metrics, and tokens that went through the forward pass.
    :raises TrainerError: loss or gradient is not finite, or the pass failed.
    """
    rate = learning_rate(algorithm, steps_done)
    plan: list[list[TrainRow]] = []
    for epoch in range(algorithm.epochs):
        shuffling = random.Random(f"{seed}-{steps_done}-{epoch}")  # noqa: S311
        dealt = minibatches(rows, algorithm.minibatches, shuffling)
        plan.extend(hand for hand in dealt if any(has_loss(row, algorithm) for row in hand))
    optimiser = policy.optimiser
    before = optimiser.snapshot()
    totals = _Totals(policy.device, has_reference=algorithm.kl_coef > 0)
    try:
        with policy.training((seed * 1_000_003 + steps_done) % 2**63):
            for number, minibatch in enumerate(plan):
                loss = _accumulate(
                    policy, algorithm, minibatch, totals, None if number else policy_version
                )
                norm = optimiser.clip()
                loss_value, norm_value = torch.stack([loss, norm.to(loss.dtype)]).tolist()
                if not (math.isfinite(loss_value) and math.isfinite(norm_value)):
                    raise TrainerError(
                        f"step {step}: loss {loss_value} and gradient norm {norm_value} in minibatch "
                        f"{number + 1} of {len(plan)} are not finite; weights and optimiser are as "
                        "before the step. Look for damaged logprobs or rewards, or lower the learning rate"
                    )
                optimiser.step(rate)
                optimiser.zero_grad()
                totals.norms.append(norm_value)
    except Exception as error:
        optimiser.restore(before.weights, before.state)
        if isinstance(error, TrainerError):
            raise
        raise TrainerError(
            f"step {step} failed, weights and optimiser are as before: {type(error).__name__}: {error}"
        ) from error
    return {"learning_rate": rate, "no_signal": 0.0, **totals.metrics()}, totals.processed


def _accumulate(
    policy: TrainedPolicy,
    algorithm: AlgorithmConfig,
    rows: Sequence[TrainRow],
    totals: _Totals,
    gap_version: int | None,
) -> torch.Tensor:
    """Add up the gradients of one minibatch; returns its loss, a float64 scalar.

    :param gap_version: measure the logprob gap on tokens of this version.
    """
    minibatch_loss = torch.zeros((), dtype=torch.float64, device=policy.device)
    for batch in micro_batches(
        rows,
        algorithm.aggregation,
        policy.token_budget,
        policy.device,
        lambda row: has_loss(row, algorithm),
    ):
        loss = _backward(policy, algorithm, batch, totals, gap_version)
        minibatch_loss += loss
        policy.optimiser.collect_gradients()
    return minibatch_loss


def _backward(
    policy: TrainedPolicy,
    algorithm: AlgorithmConfig,
    batch: MicroBatch,
    totals: _Totals,
    gap_version: int | None,
) -> torch.Tensor:
    scores = policy.score(batch, entropy_gradient=algorithm.entropy_coef > 0)
    surrogate = clipped_surrogate(
        scores.logprobs, batch.behaviour, batch.advantage, algorithm.clip_low, algorithm.clip_high
    )
    token_loss = surrogate.loss
    divergence = torch.zeros_like(token_loss)
    if algorithm.kl_coef > 0:
        divergence = k3(scores.logprobs, policy.reference_logprobs(batch))
        token_loss = token_loss + algorithm.kl_coef * divergence
    if algorithm.entropy_coef > 0:
        token_loss = token_loss - algorithm.entropy_coef * scores.entropy
    loss = (batch.weight * token_loss).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        totals.sums += torch.stack(
            [
                loss.double(),
                scores.entropy.double().sum(),
                divergence.double().sum(),
                surrogate.clipped.double().sum(),
                surrogate.ratio.double().sum(),
            ]
        )
        totals.ratio_max = torch.maximum(totals.ratio_max, surrogate.ratio.max())
        totals.tokens += len(batch.targets)
        totals.processed += batch.tokens
        if gap_version is not None:
            gaps = (scores.logprobs - batch.behaviour).abs()
            current = gaps[batch.versions == gap_version]
            if len(current):
                totals.widen_gap(current.max())
    return loss.detach().double()
