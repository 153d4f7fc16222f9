"""Samplers: the next candidate as a pure function of the search and of what was measured before.

A sampler is built for each candidate and seeded by the search's seed and the candidate's number. So
it has no state that a killed leader could lose.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet_core.errors import ConfigError
from ajet_research.parts import Scalar
from ajet_research.search.space import LEARNING, Parameter, Search

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_CLASSES = {"tpe": "TPESampler", "gp": "GPSampler"}


@dataclass(frozen=True, slots=True)
class TriedCandidate:
    """A candidate that was tried.

    :param value: what it measured; more is better. None if it is not known yet.
    """

    values: Mapping[str, Scalar]
    value: float | None


def check_sampler(search: Search) -> None:
    """Check that the sampler is installed.

    :raises ConfigError: it is not; the message says how to install it.
    """
    if search.sampler in LEARNING:
        _sampler(search, 1)


def proposed_values(
    search: Search, number: int, tried: Sequence[TriedCandidate]
) -> tuple[dict[str, Scalar], str]:
    """Return the values of a candidate, and the name of what proposed it, with its version.

    :param number: of the candidate, from 1.
    :param tried: the candidates before it that are tried, in their order.
    :raises ConfigError: the sampler is not installed.
    """
    if search.sampler == "grid":
        return search.cells()[number - 1], "grid"
    if search.sampler == "random":
        return _random(search, number), "random"
    return _asked(search, number, tried)


def _random(search: Search, number: int) -> dict[str, Scalar]:
    import numpy as np

    values: dict[str, Scalar] = {}
    for name, one in search.parameters.items():
        share = float(np.random.default_rng(_seed(search, number, name)).random())
        listed = None if one.log else one.values
        if listed is not None:
            values[name] = listed[min(int(share * len(listed)), len(listed) - 1)]
            continue
        low, high = one.ends
        if one.whole:
            # Each whole number has the room of the interval behind it.
            high += 1
        value = low * (high / low) ** share if one.log else low + (high - low) * share
        values[name] = min(int(value), int(high) - 1) if one.whole else min(max(value, low), high)
    return values


def _asked(
    search: Search, number: int, tried: Sequence[TriedCandidate]
) -> tuple[dict[str, Scalar], str]:
    """Ask a sampler of Optuna, whose study is rebuilt in memory."""
    sampler, version = _sampler(search, number)
    import optuna
    from optuna.trial import TrialState, create_trial

    space = {name: _distribution(one) for name, one in search.parameters.items()}
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for one in tried:
            known = one.value is not None
            study.add_trial(
                create_trial(
                    state=TrialState.COMPLETE if known else TrialState.RUNNING,
                    value=one.value,
                    params={k: _inside(search.parameters[k], v) for k, v in one.values.items()},
                    distributions=space,
                )
            )
        asked = study.ask(space).params
    finally:
        optuna.logging.set_verbosity(before)
    values = {name: _outside(one, asked[name]) for name, one in search.parameters.items()}
    return values, f"{search.sampler} of optuna {version}"


def _sampler(search: Search, number: int) -> tuple[Any, str]:
    try:
        import optuna

        make = getattr(optuna.samplers, _CLASSES[search.sampler])
        seed = _seed(search, number, "")
        with warnings.catch_warnings():
            # Options that may change with the next version of Optuna, which the ledger names.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            if search.sampler == "tpe":
                sampler = make(seed=seed, multivariate=True, constant_liar=True)
            else:
                sampler = make(seed=seed)
    except ImportError as error:
        name = error.name or "optuna"
        wanted = "'agentjet[research]'" if name == "optuna" else name
        raise ConfigError(
            f"The sampler {search.sampler} needs {name}: pip install {wanted}. "
            "The samplers grid and random need nothing."
        ) from error
    return sampler, optuna.__version__


def _distribution(one: Parameter) -> BaseDistribution:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if one.choices:
        return CategoricalDistribution(range(len(one.choices)))
    low, high = one.ends
    if one.whole:
        return IntDistribution(int(low), int(high), log=one.log, step=int(one.step or 1))
    return FloatDistribution(low, high, log=one.log, step=one.step)


def _inside(one: Parameter, value: Scalar) -> Any:
    """Return a value as Optuna has it: the place of a choice."""
    if not one.choices:
        return value
    kinds = [(type(choice), choice) for choice in one.choices]
    return kinds.index((type(value), value))


def _outside(one: Parameter, value: Any) -> Scalar:
    """Return a value of Optuna's as the study has it, on its step to the last bit."""
    if one.choices:
        return one.choices[int(value)]
    if one.step is not None:
        low, _ = one.ends
        return one.at(round((value - low) / one.step))
    return int(value) if one.whole else float(value)


def _seed(search: Search, number: int, part: str) -> int:
    text = f"{search.seed}/{number}/{part}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
