"""Sums over the micro-batches of a batch, and the decision to apply them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ajet_backend_trl.tensors import MicroBatch
from ajet_core.errors import StepRefusedError
from ajet_torch.guard import Accumulated, StepGuard
from ajet_training.rows import Row

SUMS = (
    "entropy",
    "kl",
    "clip_fraction",
    "ratio",
    "importance",
    "capped",
    "teacher_logprob",
    "teacher_kl",
)


@dataclass(slots=True)
class Tally:
    """Sums over the tokens of one process.

    :param gap_version: measure the logprob gap on tokens of this version, in the first minibatch.
    :param means: names from `SUMS` to report besides the common ones.
    :ivar known: logprobs of the computed rows, as first computed.
    :ivar known_since: by row, number of optimiser steps before its logprobs were computed; rows
        that were scored in advance are missing.
    :ivar norms: gradient norm of each optimiser step.
    :ivar losses: loss of each optimiser step.
    :ivar moves: divergence of each optimiser step, where it is bounded.
    :ivar shortened: number of optimiser steps that were shortened.
    :param rehearsal: apply no gradient.
    :ivar refused: the reason not to apply the batch, if any.
    """

    rows: Sequence[Row]
    guard: StepGuard
    gap_version: int
    means: Sequence[str]
    has_importance: bool
    rehearsal: bool = False
    known: dict[int, torch.Tensor] = field(default_factory=dict)
    known_since: dict[int, int] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)
    shortened: int = 0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMS, 0.0))
    tokens: int = 0
    processed: int = 0
    ratio_max: float = 0.0
    importance_max: float = 0.0
    gap: float = -1.0
    gap_sum: float = 0.0
    gap_tokens: int = 0
    refused: StepRefusedError | None = None
    loss: float = 0.0
    logprob_sum: float = 0.0

    @torch.no_grad()
    def add(
        self,
        part: MicroBatch,
        loss: torch.Tensor,
        logprobs: torch.Tensor,
        old: torch.Tensor,
        means: dict[str, float],
    ) -> None:
        """Add a computed micro-batch.

        :param logprobs: [R, C] under the policy.
        :param old: [R, C] logprobs that the policy is compared with.
        :param means: TRL's means over its tokens; only names in `SUMS` are used.
        """
        self.loss += float(loss)
        inside = part.mask.bool()
        tokens = int(inside.sum())
        if not tokens:
            return
        mine = logprobs[inside]
        self.logprob_sum += float(mine.double().sum())
        for number, values in part.by_row(self.rows, logprobs).items():
            if number not in self.known:
                self.known[number] = values.cpu()
                self.known_since[number] = len(self.norms)
        ratio = (mine - old[inside]).exp()
        for name, mean in {**means, "ratio": float(ratio.mean())}.items():
            self.sums[name] += mean * tokens
        self.ratio_max = max(self.ratio_max, float(ratio.max()))
        self.tokens += tokens
        self.processed += int(part.attention_mask.sum())
        if not self.norms:
            current = inside & (part.versions == self.gap_version)
            if bool(current.any()):
                gaps = (logprobs - part.behaviour)[current].abs()
                self.gap = max(self.gap, float(gaps.max()))
                self.gap_sum += float(gaps.double().sum())
                self.gap_tokens += len(gaps)

    @torch.no_grad()
    def weigh(self, part: MicroBatch, importance: torch.Tensor, cap: float) -> None:
        """Add the importance weights of a micro-batch.

        :param importance: [R, C] old over behaviour probability, before truncation.
        """
        inside = importance[part.mask.bool()]
        if len(inside):
            self.sums["importance"] += float(inside.sum())
            self.sums["capped"] += float((inside > cap).sum())
            self.importance_max = max(self.importance_max, float(inside.max()))

    def close_minibatch(self, norm: torch.Tensor, mean: Callable[[float], float]) -> bool:
        """Check an optimiser step after all its micro-batches.

        :param norm: norm of the gradient, equal on all processes.
        :param mean: returns the mean of a value over processes.
        :return: whether the gradient may be applied.
        """
        number = len(self.norms)
        loss, logprobs = mean(self.loss), mean(self.logprob_sum)
        self.loss = self.logprob_sum = 0.0
        self.losses.append(loss)
        self.norms.append(math.nan)
        if self.refused is not None:
            return False
        accumulated = Accumulated(
            torch.tensor(loss, dtype=torch.float64),
            torch.tensor(logprobs, dtype=torch.float64),
            0.0,
        )
        try:
            self.norms[-1] = self.guard.check(number, accumulated, norm.detach().cpu())
        except StepRefusedError as refusal:
            self.refused = refusal
            return False
        return not self.rehearsal

    def merge(self, others: Sequence[Tally]) -> None:
        """Add the sums of other processes; loss, norms and moves are equal on all of them."""
        for other in others:
            for number, values in other.known.items():
                # Epochs deal a row to different processes: keep the logprobs of the earliest, as
                # weights change later.
                since = other.known_since.get(number, -1)
                if number not in self.known or since < self.known_since.get(number, -1):
                    self.known[number] = values
                    self.known_since[number] = since
            for name in SUMS:
                self.sums[name] += other.sums[name]
            self.tokens += other.tokens
            self.processed += other.processed
            self.ratio_max = max(self.ratio_max, other.ratio_max)
            self.importance_max = max(self.importance_max, other.importance_max)
            self.gap = max(self.gap, other.gap)
            self.gap_sum += other.gap_sum
            self.gap_tokens += other.gap_tokens

    def metrics(self, epochs: int) -> dict[str, float]:
        """Return means over tokens and optimiser steps.

        :param epochs: how often the tokens were computed; importance weights are computed only
            once.
        """
        tokens = max(self.tokens, 1)
        metrics = {
            "loss": math.fsum(self.losses) / len(self.losses),
            "grad_norm": math.fsum(self.norms) / len(self.norms),
            "entropy": self.sums["entropy"] / tokens,
            "clip_fraction": self.sums["clip_fraction"] / tokens,
            "ratio_mean": self.sums["ratio"] / tokens,
            "ratio_max": self.ratio_max,
        }
        if self.moves:
            metrics["update_kl"] = max(self.moves)
            metrics["updates"] = float(len(self.moves))
            metrics["updates_shortened"] = float(self.shortened)
        for name in self.means:
            metrics[name] = self.sums[name] / tokens
        if self.has_importance:
            metrics["importance_mean"] = self.sums["importance"] * epochs / tokens
            metrics["importance_max"] = self.importance_max
            metrics["importance_capped"] = self.sums["capped"] * epochs / tokens
        if self.gap >= 0:
            metrics["logprob_gap"] = self.gap
            metrics["logprob_gap_mean"] = self.gap_sum / self.gap_tokens
        return metrics
