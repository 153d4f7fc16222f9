"""What researchers may spend, and what they have spent. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from ajet_research.events import ResearcherAnswered, ResearcherAsked
from ajet_research.study import Budget

_NEAR = 1e-9


@dataclass(frozen=True, slots=True)
class ResearcherLimits:
    """What researchers may spend in all; None means no limit.

    :param tokens: of prompts and answers.
    :param money: their price.
    """

    tokens: int | None = None
    money: float | None = None

    @classmethod
    def of(cls, budget: Budget) -> ResearcherLimits:
        """Return the limits of a registered study."""
        return cls(budget.researcher_tokens, budget.researcher_money)


@dataclass(slots=True)
class ResearcherSpending:
    """What was spent, and what is set aside for requests without an end.

    :param requests: that were made.
    :param unsettled: by number, requests that have not ended. One whose process was killed never
        does, and counts with its worst case.
    """

    requests: int = 0
    tokens: int = 0
    money: float = 0.0
    unsettled: dict[int, ResearcherAsked] = field(default_factory=dict)

    def apply(self, event: ResearcherAsked | ResearcherAnswered) -> None:
        """Take one more row.

        :raises ValueError: it cannot follow the rows before it.
        """
        if isinstance(event, ResearcherAsked):
            if event.number != self.requests + 1:
                raise ValueError(event.number)
            self.requests += 1
            self.unsettled[event.number] = event
            self.tokens += event.tokens
            self.money += event.money
            return
        try:
            before = self.unsettled.pop(event.number)
        except KeyError:
            raise ValueError(event.number) from None
        self.tokens += event.tokens - before.tokens
        self.money += event.money - before.money

    def excess(self, tokens: int, money: float, limits: ResearcherLimits) -> str:
        """Return why another request with this worst case may not be sent; "" if it may."""
        if limits.tokens is not None and self.tokens + tokens > limits.tokens:
            return (
                f"it may take {tokens} tokens, and {max(0, limits.tokens - self.tokens)} of "
                f"{limits.tokens} are left"
            )
        if limits.money is not None and self.money + money > limits.money * (1 + _NEAR):
            return (
                f"it may cost {money:.4g}, and {max(0.0, limits.money - self.money):.4g} of "
                f"{limits.money:g} is left"
            )
        return ""
