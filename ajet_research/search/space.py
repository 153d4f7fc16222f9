"""The part ``search`` of a study file: what is searched, how, and with which seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from ajet_research.parts import Count, Name, Number, Scalar, StudyPart

SEARCH = "search"
"""The factor of arms that says whether they are the baseline or a chosen candidate."""
BASELINE = "baseline"
LEARNING = ("tpe", "gp")
"""Samplers of Optuna, which propose by what earlier candidates measured."""
_MOST_CELLS = 10_000


class Parameter(StudyPart):
    """A setting that is searched.

    :param path: of the arena's setting.
    :param low: least value. With whole numbers as ends, values are whole numbers.
    :param high: greatest value.
    :param log: whether values are drawn by their logarithm.
    :param step: between two values, from `low` on.
    :param choices: the values, instead of a range.
    """

    path: str
    low: Number | None = None
    high: Number | None = None
    log: bool = False
    step: Number | None = None
    choices: list[Scalar] = Field([])

    @property
    def whole(self) -> bool:
        """Whether the values of the range are whole numbers."""
        return all(isinstance(one, int) for one in (self.low, self.high, self.step or 1))

    @property
    def ends(self) -> tuple[float, float]:
        """Least and greatest value of a range, of which the last step is left out if it is cut."""
        assert self.low is not None
        assert self.high is not None
        if self.step is None:
            return self.low, self.high
        return self.low, self.at(math.floor((self.high - self.low) / self.step * (1 + 1e-12)))

    @property
    def values(self) -> list[Scalar] | None:
        """All values; None if they cannot be listed."""
        if self.choices:
            return self.choices
        step = self.step or (1 if self.whole else None)
        if step is None:
            return None
        low, high = self.ends
        count = round((high - low) / step) + 1
        return [self.at(index) for index in range(count)] if count <= _MOST_CELLS else None

    def at(self, index: int) -> int | float:
        """Return the value so many steps above the least one."""
        assert self.low is not None
        return self.low + index * (self.step or 1)

    def holds(self, value: Scalar) -> bool:
        """Return whether this is one of the values."""
        if (listed := self.values) is not None:
            return any(type(one) is type(value) and one == value for one in listed)
        kind = int if self.whole else float
        low, high = self.ends
        return isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high


class Rung(StudyPart):
    """A round of a search, with seeds of its own.

    :param seeds: with which each candidate is tried.
    :param keep: how many of the best enter the next rung; after the last one, they are confirmed.
    :param set: settings of this rung's trials, such as a smaller number of steps.
    """

    seeds: Count = 1
    keep: Annotated[int, Field(ge=1, le=20)] = 1
    set: dict[str, Scalar] = Field({})


class Search(StudyPart):
    """A search for an arm. Its trials choose candidates, and no verdict rests on them.

    :param parameters: by name, what is searched.
    :param candidates: that are proposed.
    :param batch: proposed at a time, before any of them is tried. A sampler that learns has seen
        the outcomes of all earlier batches.
    :param seed: of the sampler.
    :param first_seed: the seeds of all rungs are this one and those after it.
    :param set: settings of the search's trials, such as another split.
    :param arm: a level of each factor, with which candidates are tried.
    """

    parameters: Annotated[dict[Name, Parameter], Field(min_length=1)]
    sampler: Literal["grid", "random", "tpe", "gp"] = "tpe"
    candidates: Annotated[int, Field(ge=1, le=1000)]
    batch: Count = 1
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    first_seed: Annotated[int, Field(ge=0, lt=2**31)]
    rungs: list[Rung] = Field([Rung()], min_length=1, max_length=5)
    set: dict[str, Scalar] = Field({})
    arm: dict[str, Scalar] = Field({})

    @property
    def levels(self) -> list[Scalar]:
        """The levels of the factor ``search`` in comparisons."""
        return [BASELINE, *(chosen_level(rank) for rank in range(1, self.rungs[-1].keep + 1))]

    @property
    def seeds(self) -> range:
        """The seeds of all rungs."""
        return range(self.first_seed, self.first_seed + sum(rung.seeds for rung in self.rungs))

    @property
    def entering(self) -> list[int]:
        """The most candidates that enter each rung."""
        return [self.candidates, *(rung.keep for rung in self.rungs[:-1])]

    @property
    def trials(self) -> int:
        """The most trials that the search needs."""
        return sum(
            count * rung.seeds for count, rung in zip(self.entering, self.rungs, strict=True)
        )

    @property
    def proposed_at_once(self) -> int:
        """How many candidates are proposed before any of them is tried."""
        return self.batch if self.sampler in LEARNING else self.candidates

    def seeds_of(self, rung: int) -> range:
        """Return the seeds of a rung (counted from 0)."""
        first = self.first_seed + sum(one.seeds for one in self.rungs[:rung])
        return range(first, first + self.rungs[rung].seeds)

    def settings_of(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return values of parameters as settings of the arena."""
        return {self.parameters[name].path: value for name, value in values.items()}

    def holds(self, values: Mapping[str, Scalar]) -> bool:
        """Return whether values are a point of the space."""
        return values.keys() == self.parameters.keys() and all(
            self.parameters[name].holds(value) for name, value in values.items()
        )

    def cells(self) -> list[dict[str, Scalar]]:
        """Return all points of a space whose values can be listed; the last one varies fastest."""
        listed = [one.values or [] for one in self.parameters.values()]
        return [
            dict(zip(self.parameters, cell, strict=True)) for cell in itertools.product(*listed)
        ]


def chosen_level(rank: int) -> str:
    """Return the level of a chosen candidate: the best one has rank 1."""
    return "chosen" if rank == 1 else f"chosen-{rank}"


def candidate_arm(number: int, rung: int) -> str:
    """Return the name of what a candidate's trials in a rung (counted from 0) belong to."""
    return f"candidate {number}, rung {rung + 1}"


def wrong_search(search: Search) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield what types cannot express, with the place below ``search``."""
    for name, one in search.parameters.items():
        for key, what in _wrong_parameter(name, one):
            yield ("parameters", name, key), what
    listed = [one.values for one in search.parameters.values()]
    if search.sampler == "grid":
        for name, one in search.parameters.items():
            if one.values is None:
                what = f"a grid lists all values of {name!r}: give it 'choices', or a 'step'"
                yield ("parameters", name), what
        if all(listed) and math.prod(len(levels or ()) for levels in listed) != search.candidates:
            cells = math.prod(len(levels or ()) for levels in listed)
            what = (
                f"'candidates' is {search.candidates}, and the grid has {cells} cells: write "
                f"candidates = {cells}, or use the sampler 'random'"
            )
            yield ("candidates",), what
    for index, (count, rung) in enumerate(zip(search.entering, search.rungs, strict=True)):
        if rung.keep > count:
            yield (
                ("rungs", index),
                f"rung {index + 1} keeps {rung.keep} of {count} candidates: keep at most {count}",
            )


def _wrong_parameter(name: str, one: Parameter) -> Iterator[tuple[str, str]]:
    if one.choices:
        if (one.low, one.high, one.step, one.log) != (None, None, None, False):
            yield "choices", f"{name!r} has 'choices' and a range: remove one of them"
        if len({(type(choice), choice) for choice in one.choices}) != len(one.choices):
            yield "choices", f"the choices of {name!r} are not all different"
        return
    if one.low is None or one.high is None:
        yield "path", f"the range of {name!r} is empty: give it 'low' and 'high', or 'choices'"
        return
    if not one.low < one.high:
        yield "low", f"the range of {name!r} is empty: 'low' is {one.low}, and 'high' {one.high}"
    elif one.log and one.low <= 0:
        yield "low", f"{name!r} has no logarithm at {one.low}: raise 'low', or remove 'log'"
    elif one.log and one.step is not None:
        yield "step", f"{name!r} has 'log' and 'step': remove one of them"
    elif one.step is not None and not 0 < one.step <= one.high - one.low:
        yield "step", f"the step of {name!r} is {one.step}: it lies between 0 and high - low"
