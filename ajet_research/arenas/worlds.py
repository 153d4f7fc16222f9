"""Planted worlds: what is true in them is known, so that a study's verdicts can be right or wrong.

A world is named in a study by its id: one of the catalogue, such as ``clear``, or a family and a
number, such as ``null:17``, from which the same world is generated each time.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from ajet_core.errors import ConfigError

METHODS = tuple("abcdefghijklmnopqrst")
"""The levels of the setting ``method``."""


@dataclass(frozen=True, slots=True)
class PlantedWorld:
    """How outcomes come about. The unit of scores is the standard deviation of a difference.

    :param effects: the true score of a method above that of ``a``; 0 for others.
    :param interaction: what method ``b`` and variant ``b`` together add; alone, each subtracts it.
    :param noise: distribution of an arm's own noise, scaled to a standard deviation of 1.
    :param spread: factor of the noise of all methods but ``a``.
    :param shared: standard deviation of what all arms of a seed have in common.
    :param drift: what each further trial on the machine loses.
    :param crash_rate: probability that a trial of any arm fails.
    :param crash_below: trials of methods other than ``a`` fail if their noise is below this.
    :param slices: what methods other than ``a`` lose on the far tasks.
    :param proxy: the training reward of methods other than ``a`` rises by so much regardless.
    :param hill: what the best values of ``x`` and ``y`` add, at most; far away nothing.
    :param peak: where that is.
    :param bait: what each unit of ``x`` adds on the split ``tuning``, and on no other.
    :param seeds_count: whether the seed has an effect.
    :param repeatable: whether the same seed gives the same result.
    :param overlap: whether tasks are both trained on and evaluated.
    :param confounded: whether method ``b`` also changes the batch size.
    :param hangs: whether trials of method ``b`` never end.
    """

    effects: dict[str, float] = field(default_factory=dict)
    interaction: float = 0.0
    noise: Literal["normal", "heavy", "skewed", "coarse"] = "normal"
    spread: float = 1.0
    shared: float = 1.0
    drift: float = 0.0
    crash_rate: float = 0.0
    crash_below: float | None = None
    slices: float = 0.0
    proxy: float = 0.0
    hill: float = 0.0
    peak: tuple[float, float] = (0.7, -0.5)
    bait: float = 0.0
    seeds_count: bool = True
    repeatable: bool = True
    overlap: bool = False
    confounded: bool = False
    hangs: bool = False


CATALOGUE: dict[str, PlantedWorld] = {
    "clear": PlantedWorld({"b": 2.0}),
    "medium": PlantedWorld({"b": 1.0}),
    "null": PlantedWorld(),
    "trivial": PlantedWorld({"b": 0.3}),
    "plateau": PlantedWorld({"b": 2.5, "c": 2.5}),
    "xor": PlantedWorld(interaction=2.5),
    "heavy": PlantedWorld(noise="heavy", spread=3.0),
    "drift": PlantedWorld(drift=0.2),
    "survivors": PlantedWorld(crash_below=-0.2),
    "proxy": PlantedWorld({"b": -2.5}, proxy=3.0),
    "hill": PlantedWorld(hill=4.0),
    "bait": PlantedWorld(bait=3.0),
    "overlap": PlantedWorld(overlap=True),
    "confounded": PlantedWorld({"b": 2.0}, confounded=True),
    "slice": PlantedWorld({"b": 3.0}, slices=8.0),
    "seedless": PlantedWorld({"b": 1.0}, seeds_count=False),
    "unrepeatable": PlantedWorld({"b": 2.5}, repeatable=False),
    "endless": PlantedWorld(hangs=True),
}
"""By id, the worlds with one trap each."""

_FAMILIES = {"null": 0.0, "small": 0.3, "one": 1.0, "large": 1.5, "hill": 0.0, "bait": 0.0}
"""By family, the effect of method ``b``. In ``hill``, the peak lies elsewhere in each world."""


@functools.cache
def planted_world(id_: str) -> PlantedWorld:
    """Return a world by its id.

    :raises ConfigError: there is none.
    """
    family, colon, number = id_.partition(":")
    if not colon and id_ in CATALOGUE:
        return CATALOGUE[id_]
    if family not in _FAMILIES or not number.isdecimal():
        known = ", ".join([*CATALOGUE, *(f"{name}:NUMBER" for name in _FAMILIES)])
        raise ConfigError(f"Unknown synthetic world {id_!r}; known: {known}.")
    effect = _FAMILIES[family]
    rng = generator("world", id_)
    if family == "hill":
        angle = float(rng.uniform(0, 2 * math.pi))
        peak = (0.85 * math.cos(angle), 0.85 * math.sin(angle))
        return PlantedWorld(hill=4.0, peak=peak, shared=float(rng.uniform(0.2, 2.0)))
    if family == "bait":
        return PlantedWorld(bait=3.0, shared=float(rng.uniform(0.2, 2.0)))
    if effect:
        return PlantedWorld({"b": effect}, shared=float(rng.uniform(0.2, 2.0)))
    nuisance = replace(
        PlantedWorld(),
        noise=rng.choice(["normal", "heavy", "skewed", "coarse"]),
        spread=float(rng.choice([1.0, 3.0])),
        shared=float(rng.uniform(0.0, 2.0)),
        drift=float(rng.choice([0.0, 0.0, 0.1])),
        crash_rate=float(rng.choice([0.0, 0.0, 0.15])),
    )
    # Skewed noise of unequal scale would not be a null for the mean of signs: its difference is
    # not symmetric. Exchangeable arms are, whatever their distribution.
    return replace(nuisance, spread=1.0) if nuisance.noise == "skewed" else nuisance


def generator(*parts: object) -> np.random.Generator:
    """Return a random generator that depends on the parts alone."""
    seed = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return np.random.default_rng(int.from_bytes(seed[:16], "big"))


def height(world: PlantedWorld, x: float, y: float) -> float:
    """Return what a place adds to a score: a hill of radius about 0.6 around the peak."""
    far = (x - world.peak[0]) ** 2 + (y - world.peak[1]) ** 2
    return world.hill * math.exp(-far / 0.36)


def draw(noise: str, rng: np.random.Generator) -> float:
    """Return one number of a distribution with mean 0, and scale about ``1/sqrt(2)``.

    The difference of two has a standard deviation of 1, except that heavy tails have more.
    """
    if noise == "heavy":
        return float(rng.standard_t(2)) * 0.7
    if noise == "skewed":
        return float(rng.exponential(1.0) - 1.0) * 0.7071
    if noise == "coarse":
        return float(rng.integers(-1, 2)) * 0.866
    return float(rng.standard_normal()) * 0.7071
