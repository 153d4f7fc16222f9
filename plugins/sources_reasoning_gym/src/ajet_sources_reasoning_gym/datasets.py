"""Datasets of Reasoning Gym, and levels of their curricula. Importing it takes seconds of a CPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import reasoning_gym
from reasoning_gym.coaching import AttributeDefinition, RangeAttributeDefinition
from reasoning_gym.coaching.base_curriculum import DefaultCurriculumContext, RangeAttributeMode
from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum

from ajet_core.errors import ConfigError
from ajet_sources_reasoning_gym.settings import ReasoningGymSettings

_PARAM = "sources.reasoning_gym"
_log = logging.getLogger("ajet.sources.reasoning_gym")


def chosen_levels(name: str, settings: ReasoningGymSettings) -> Sequence[int | None]:
    """Return the levels of a dataset's tasks, or None alone if these have none.

    :raises ConfigError: there is no such dataset, it has no curriculum, or its curriculum has no
        such level or attribute.
    """
    if name not in DATASETS:
        alike = get_close_matches(name, sorted(DATASETS), n=1)
        hint = f" (did you mean {alike[0]!r}?)" if alike else ""
        raise ConfigError(
            f"Reasoning Gym has no dataset {name!r}{hint}; "
            "write reasoning_gym:DATASET, such as reasoning_gym:chain_sum",
            param="source",
        )
    if not settings.has_curriculum:
        return [None]
    if name not in CURRICULA:
        raise ConfigError(
            f"{name} has no curriculum: leave out levels and attribute_levels", param="source"
        )
    attributes = create_curriculum(name).attributes
    _check_attributes(name, attributes, settings)
    last = max(
        len(attribute.levels) - 1
        for attribute_name, attribute in attributes.items()
        if attribute_name not in settings.attribute_levels or not settings.levels
    )
    if settings.levels == "all":
        return _usable(name, range(last + 1), settings)
    # Reasoning Gym itself takes the highest level instead of one that does not exist.
    if beyond := [level for level in settings.levels if level > last]:
        raise ConfigError(
            f"{name} has no level {beyond[0]}; its curriculum has levels from 0 to {last}",
            param=f"{_PARAM}.levels",
        )
    return settings.levels or [None]


def create_dataset(
    name: str, level: int | None, size: int, seed: int, settings: ReasoningGymSettings
) -> Any:
    """Create a dataset.

    :param level: one of `chosen_levels`.
    :raises ConfigError: its settings are wrong.
    """
    config = {"size": size, "seed": seed, **settings.config}
    try:
        if settings.has_curriculum:
            curriculum = create_curriculum(name)
            if level is not None:
                curriculum.set_global_level(level)
            for attribute, levels in settings.attribute_levels.items():
                curriculum.set_attr_level(attribute, levels)
            context = DefaultCurriculumContext(mode=RangeAttributeMode(settings.ranges))
            config = vars(curriculum.generate_configuration(config, context))
        return reasoning_gym.create_dataset(name, **config)
    except (AssertionError, TypeError, ValueError) as error:
        where = "" if level is None else f" at level {level}"
        raise ConfigError(
            f"Reasoning Gym refuses the settings of {name}{where}: {error}",
            param=f"{_PARAM}.config",
        ) from error


def _check_attributes(
    name: str, attributes: Mapping[str, AttributeDefinition], settings: ReasoningGymSettings
) -> None:
    """:raises ConfigError: an attribute does not exist, or is set in two ways."""
    shown = ", ".join(
        f"{attribute_name} (0 to {len(one.levels) - 1})"
        for attribute_name, one in attributes.items()
    )
    for attribute_name, level in settings.attribute_levels.items():
        if attribute_name not in attributes or level >= len(attributes[attribute_name].levels):
            raise ConfigError(
                f"the curriculum of {name} has no level {level} of {attribute_name!r}; its "
                f"attributes are {shown}",
                param=f"{_PARAM}.attribute_levels",
            )
    if settings.levels and attributes.keys() <= settings.attribute_levels.keys():
        raise ConfigError(
            f"attribute_levels has all attributes of the curriculum of {name}: leave out levels, "
            "or one of them",
            param=f"{_PARAM}.attribute_levels",
        )
    for attribute_name, attribute in attributes.items():
        # The curriculum would replace the value, without a word.
        for field in _fields(attribute):
            if field in settings.config:
                raise ConfigError(
                    f"the curriculum of {name} sets {field}: leave out config.{field}, or set its "
                    f"level with attribute_levels.{attribute_name}",
                    param=f"{_PARAM}.config",
                )


def _fields(attribute: Any) -> Iterator[str]:
    """Yield the fields of the dataset's configuration that an attribute sets."""
    if isinstance(attribute, RangeAttributeDefinition):
        yield attribute.lower_field_name
        yield attribute.upper_field_name
    else:
        yield attribute.field_name


def _usable(name: str, levels: Sequence[int], settings: ReasoningGymSettings) -> Sequence[int]:
    """Return the levels that the dataset takes. Some curricula have others too.

    :raises ConfigError: it takes none.
    """
    refused: dict[int, ConfigError] = {}
    for level in levels:
        try:
            create_dataset(name, level, 1, 0, settings)
        except ConfigError as error:
            refused[level] = error
    if len(refused) == len(levels):
        raise refused[levels[0]]
    for reason in refused.values():
        _log.warning("%s; its tasks are left out", reason)
    return [level for level in levels if level not in refused]
