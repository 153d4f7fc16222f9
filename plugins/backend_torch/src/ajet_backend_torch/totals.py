"""What the passes of a batch add up to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from ajet_backend_torch.losses import Surrogate, TokenScores
from ajet_backend_torch.packing import Ints, PassTensors

SUMS = ("loss", "entropy", "kl", "clipped", "ratio")


@dataclass(slots=True)
class Totals:
    """Sums over tokens, on the device until they are asked for.

    :ivar tokens: trained tokens, counted as often as they were computed.
    :ivar processed: tokens that went through the forward pass.
    :ivar norms: gradient norm of each optimiser step.
    """

    device: torch.device
    has_reference: bool = False
    sums: torch.Tensor = field(init=False)
    ratio_max: torch.Tensor = field(init=False)
    gap: torch.Tensor = field(init=False)
    tokens: int = 0
    processed: int = 0
    norms: list[float] = field(default_factory=list)
    kept: list[tuple[Ints, torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=self.device)
        self.ratio_max = torch.zeros((), device=self.device)
        self.gap = torch.full((), -1.0, device=self.device)

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

        :param gap_version: tokens of this version count for the logprob gap.
        """
        zero = self.sums.new_zeros(())
        self.sums += torch.stack(
            [
                loss.double(),
                scores.entropy.double().sum(),
                zero if divergence is None else divergence.double().sum(),
                surrogate.clipped.double().sum(),
                surrogate.ratio.double().sum(),
            ]
        )
        self.ratio_max = torch.maximum(self.ratio_max, surrogate.ratio.max())
        self.tokens += len(tensors.targets)
        if gap_version is not None:
            gaps = (scores.logprobs - tensors.behaviour).abs()
            current = torch.where(tensors.versions == gap_version, gaps, -1.0)
            self.gap = torch.maximum(self.gap, current.max())

    def keep(self, slots: Ints, logprobs: torch.Tensor) -> None:
        """Remember the logprobs of tokens, by their places in `CallTokens`."""
        self.kept.append((slots, logprobs.detach()))

    def logprobs(self, first: Ints) -> list[list[float]]:
        """What was kept, call by call; an empty list for a call of which a token is missing.

        :param first: as `CallTokens.first`.
        """
        found = np.full(int(first[-1]), np.nan, np.float32)
        known = np.zeros(len(found), np.bool_)
        if self.kept:
            slots = np.concatenate([slots for slots, _ in self.kept])
            found[slots] = torch.cat([logprobs for _, logprobs in self.kept]).cpu().numpy()
            known[slots] = True
        bounds = zip(first[:-1].tolist(), first[1:].tolist(), strict=True)
        return [
            found[start:end].tolist() if known[start:end].all() else [] for start, end in bounds
        ]

    def metrics(self) -> dict[str, float]:
        """Means over tokens and optimiser steps."""
        sums = dict(zip(SUMS, self.sums.tolist(), strict=True))
        found = {
            "loss": sums["loss"] / len(self.norms),
            "entropy": sums["entropy"] / self.tokens,
            "clip_fraction": sums["clipped"] / self.tokens,
            "ratio_mean": sums["ratio"] / self.tokens,
            "ratio_max": float(self.ratio_max),
            "grad_norm": math.fsum(self.norms) / len(self.norms),
        }
        if self.has_reference:
            found["kl"] = sums["kl"] / self.tokens
        gap = float(self.gap)
        if gap >= 0:
            found["logprob_gap"] = gap
        return found
