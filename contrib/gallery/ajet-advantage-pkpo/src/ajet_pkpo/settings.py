"""Settings, in a light module: the server imports it to check them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet_core.interfaces import ComponentSettings

Baseline = Literal["loo-1", "loo", "none"]


class PkpoEstimatorSettings(ComponentSettings):
    """Settings of the advantage ``pkpo``.

    :param k: the number of attempts of which the best one counts.
    :param baseline: what is subtracted: ``loo-1`` (equation 33, what the paper calls PKPO), ``loo``
        (equation 29) or ``none`` (equation 19).
    """

    k: Annotated[int, Field(ge=1)] = 4
    baseline: Baseline = "loo-1"
