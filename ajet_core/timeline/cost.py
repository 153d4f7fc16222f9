"""The duration of a trainer's forward and backward passes, by which the planner compares plans."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassShape:
    """One pass: R rows of up to L new tokens after up to P already computed tokens.

    Sizes include padding.
    """

    rows: int
    width: int
    past: int = 0

    @property
    def tokens(self) -> int:
        """Number of new tokens, R * L."""
        return self.rows * self.width

    @property
    def pairs(self) -> int:
        """Number of pairs of query and key, R * L * (P + L)."""
        return self.tokens * (self.past + self.width)

    @property
    def gathered(self) -> int:
        """Number of tokens whose keys and values are gathered, R * (P + L); 0 without a past."""
        return self.rows * (self.past + self.width) if self.past else 0


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a forward and backward pass, as a sum of terms >= 0 measured by the trainer.

    :param per_pass: seconds per pass.
    :param per_token: seconds per new token.
    :param per_pair: seconds per pair of query and key.
    :param per_gathered: seconds per token of `PassShape.gathered`.
    """

    per_pass: float
    per_token: float
    per_pair: float
    per_gathered: float = 0.0

    def seconds(self, shape: PassShape) -> float:
        """Return the duration of one pass in seconds."""
        return (
            self.per_pass
            + self.per_token * shape.tokens
            + self.per_pair * shape.pairs
            + self.per_gathered * shape.gathered
        )
