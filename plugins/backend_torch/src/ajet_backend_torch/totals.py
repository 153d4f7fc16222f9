"""Sums over the passes of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from ajet_backend_torch.losses import Surrogate, TokenScores
from ajet_backend_torch.packing import Ints, PassTensors

SUMS = ("loss", "entropy", "kl", "clipped", "ratio", "importance", "capped")


@dataclass(slots=True)
class Totals:
    """Sums over tokens, kept on the device until they are read.

    :param sampled: S, the number of sampled tokens in the batch.
    :ivar known: [S] float32 logprobs to report, NaN for the others.
    :ivar latest: [S] float32 logprobs of the latest training pass, NaN for tokens that were in
        none.
    :ivar tokens: number of trained tokens, counted each time they are computed.
    :ivar processed: number of tokens computed in forward passes.
    :ivar norms: gradient norm of each optimiser step.
    :ivar moves: divergence of each optimiser step, where it is bounded.
    :ivar shortened: number of optimiser steps that were shortened.
    """

    device: torch.device
    sampled: int
    has_reference: bool = False
    has_importance: bool = False
    known: torch.Tensor = field(init=False)
    latest: torch.Tensor = field(init=False)
    sums: torch.Tensor = field(init=False)
    ratio_max: torch.Tensor = field(init=False)
    importance_max: torch.Tensor = field(init=False)
    gap: torch.Tensor = field(init=False)
    gap_sum: torch.Tensor = field(init=False)
    gap_tokens: torch.Tensor = field(init=False)
    tokens: int = 0
    processed: int = 0
    norms: list[float] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)
    shortened: int = 0

    def __post_init__(self) -> None:
        self.known = torch.full((self.sampled,), math.nan, device=self.device)
        self.latest = torch.full_like(self.known, math.nan)
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=self.device)
        self.ratio_max = torch.zeros((), device=self.device)
        self.importance_max = torch.zeros((), device=self.device)
        self.gap = torch.full((), -1.0, device=self.device)
        self.gap_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self.gap_tokens = torch.zeros((), dtype=torch.float64, device=self.device)

    @torch.no_grad()
    def add(
        self,
        loss: torch.Tensor,
        tensors: PassTensors,
        scores: TokenScores,
        surrogate: Surrogate,
        *,
        divergence: torch.Tensor | None,
        gap_version: int | None,
    ) -> None:
        """Add the trained tokens of a pass.

        :param gap_version: measure the logprob gap on tokens of this version.
        """
        zero = self.sums.new_zeros(())
        importance = surrogate.importance
        self.sums += torch.stack(
            [
                loss.double(),
                scores.entropy.double().sum(),
                zero if divergence is None else divergence.double().sum(),
                surrogate.clipped.double().sum(),
                surrogate.ratio.double().sum(),
                zero if importance is None else importance.ratio.double().sum(),
                zero if importance is None else importance.capped.double().sum(),
            ]
        )
        self.ratio_max = torch.maximum(self.ratio_max, surrogate.ratio.max())
        if importance is not None:
            self.importance_max = torch.maximum(self.importance_max, importance.ratio.max())
        self.tokens += len(tensors.targets)
        if gap_version is not None:
            gaps = (scores.logprobs - tensors.behaviour).abs()
            current = tensors.versions == gap_version
            self.gap = torch.maximum(self.gap, torch.where(current, gaps, -1.0).max())
            self.gap_sum += torch.where(current, gaps, 0.0).double().sum()
            self.gap_tokens += current.double().sum()

    def keep(self, tensors: PassTensors, logprobs: torch.Tensor, *, report: bool) -> None:
        """Store the logprobs of the trained tokens of a training pass.

        :param report: also store them as the logprobs to report.
        """
        self.latest[tensors.slots] = logprobs.detach()
        if report:
            self.known[tensors.slots] = logprobs.detach()

    def logprobs(self, first: Ints) -> list[list[float]]:
        """Return the stored logprobs by call; an empty list for a call with missing tokens.

        :param first: as `CallTokens.first`.
        """
        logprobs = self.known.cpu().numpy()
        missing = np.isnan(logprobs)
        bounds = zip(first[:-1].tolist(), first[1:].tolist(), strict=True)
        return [
            [] if missing[start:end].any() else logprobs[start:end].tolist()
            for start, end in bounds
        ]

    def metrics(self) -> dict[str, float]:
        """Return means over tokens and optimiser steps."""
        sums = dict(zip(SUMS, self.sums.tolist(), strict=True))
        metrics = {
            "loss": sums["loss"] / len(self.norms),
            "entropy": sums["entropy"] / self.tokens,
            "clip_fraction": sums["clipped"] / self.tokens,
            "ratio_mean": sums["ratio"] / self.tokens,
            "ratio_max": float(self.ratio_max),
            "grad_norm": math.fsum(self.norms) / len(self.norms),
        }
        if self.moves:
            metrics["update_kl"] = max(self.moves)
            metrics["updates"] = float(len(self.moves))
            metrics["updates_shortened"] = float(self.shortened)
        if self.has_reference:
            metrics["kl"] = sums["kl"] / self.tokens
        if self.has_importance:
            metrics["importance_mean"] = sums["importance"] / self.tokens
            metrics["importance_max"] = float(self.importance_max)
            metrics["importance_capped"] = sums["capped"] / self.tokens
        gap = float(self.gap)
        if gap >= 0:
            metrics["logprob_gap"] = gap
            metrics["logprob_gap_mean"] = float(self.gap_sum / self.gap_tokens)
        return metrics
