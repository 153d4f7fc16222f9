"""The time and money that a run spends: reports, budgets, totals."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from ajet_core.protocol.base import AS_JSON_INTEGER, Message, Name

Tokens = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1), AS_JSON_INTEGER]


class BudgetConfig(Message):
    """What a run may spend before it pauses, also the body of ``PUT /v1/budget``.

    :param usd: of devices and paid endpoints together.
    :param hours: of the run's active time, that is, without pauses.
    """

    usd: Annotated[float, Field(strict=True, gt=0, le=1e9)] | None = None
    hours: Annotated[float, Field(strict=True, gt=0, le=1e6)] | None = None


class SpendingReport(Message):
    """Body of ``POST /v1/spending``: what a client paid for, as an amount or as tokens of a model.

    :param report_id: random; the same report again is not counted again.
    :param model: a paid model, whose tokens the server prices by its setting ``costs.models``.
    :param source: what used it, such as ``judge``.
    :param episode_id: the episode it was paid for, if it was one.
    """

    report_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{16,128}$")]
    usd: Annotated[float, Field(strict=True, ge=0, le=1e6)] | None = None
    model: Name | None = None
    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    source: Name = "client"
    episode_id: Name | None = None

    @model_validator(mode="after")
    def _is_an_amount_or_tokens(self) -> Self:
        if self.usd is None and self.model is None:
            raise ValueError("report either usd, or the tokens of a model")
        if (self.usd is not None or self.model is None) and self.input_tokens + self.output_tokens:
            raise ValueError("tokens belong to a model, and are priced by the server: omit usd")
        return self


class SpendingReceipt(Message):
    """Answer of ``POST /v1/spending``.

    :param counted: False if this report was counted before.
    """

    counted: bool


class PaidUse(Message):
    """What clients reported of one source and model.

    :param model: "" for plain amounts.
    :param usd: None if the model has no price.
    """

    source: str
    model: str
    usd: float | None
    input_tokens: int
    output_tokens: int


class TimeLeft(Message):
    """When a run will have trained all its steps (docs/spending.md has the formula).

    :param steps: that are left.
    :param low: the bounds of an interval of 90 %; None with fewer than 5 steps to judge by.
    """

    steps: int
    seconds: float
    low: float | None = None
    high: float | None = None


class Spending(Message):
    """The time and money that a run has spent, over all starts of its server.

    :param seconds: by phase.
    :param devices: number of devices that the run holds, by kind.
    :param device_hours: devices times hours, by phase.
    :param device_usd: their cost; None if a kind of device has no price.
    :param usd: cost of all that has a price.
    :param budget: in force.
    """

    seconds: dict[str, float]
    devices: dict[str, int]
    device_hours: dict[str, float]
    device_usd: float | None
    paid: list[PaidUse]
    usd: float
    active_hours: float
    budget: BudgetConfig
    time_left: TimeLeft | None = None
