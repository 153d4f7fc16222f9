"""How long a trainer's forward and backward passes take: what the planner weighs plans with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassShape:
    """One pass: R rows of up to L new tokens after up to P tokens that are computed already.

    Sizes are as computed, padding included.
    """

    rows: int
    width: int
    past: int = 0

    @property
    def tokens(self) -> int:
        """New tokens, R * L."""
        return self.rows * self.width

    @property
    def pairs(self) -> int:
        """Pairs of query and key, R * L * (P + L)."""
        return self.tokens * (self.past + self.width)

    @property
    def gathered(self) -> int:
        """Tokens whose keys and values are brought together for the rows, R * (P + L); 0 without a past."""
        return self.rows * (self.past + self.width) if self.past else 0


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a pass, forward and backward, as a sum of non-negative terms measured by the trainer.

    :param per_pass: s.
    :param per_token: s for each new token.
    :param per_pair: s for each pair of query and key.
    :param per_gathered: s for each token of `PassShape.gathered`.
    """

    per_pass: float
    per_token: float
    per_pair: float
    per_gathered: float = 0.0

    def seconds(self, shape: PassShape) -> float:
        """Seconds of one pass."""
        return (
            self.per_pass
            + self.per_token * shape.tokens
            + self.per_pair * shape.pairs
            + self.per_gathered * shape.gathered
        )
