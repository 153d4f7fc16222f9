"""What the model sees of an environment, and how its messages become actions."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ajet_core.errors import ConfigError
from ajet_sources import action_in
from ajet_sources_openenv.settings import OpenEnvSettings

# Every action and observation of OpenEnv has this field. The model does not see it: it may have
# what the environment notes about the answer.
_METADATA = "metadata"
_FENCE = "```"


class NoActionError(Exception):
    """A message of the model is not an action; the text says why."""


class ActionForm(ABC):
    """How the model writes its actions.

    :ivar rules: the system message that explains it.
    """

    rules: str = ""

    @abstractmethod
    def action(self, text: str) -> dict[str, Any]:
        """Return the action in an answer.

        :raises NoActionError: there is none.
        """


class TextForm(ActionForm):
    """The answer is the field of the action that is a text."""

    def __init__(self, field: str, schema: Mapping[str, Any]) -> None:
        self.field = field
        said = schema.get("properties", {}).get(field, {})
        form = {key: said[key] for key in ("description", "enum", "pattern") if key in said}
        meaning = f" It is the field {field!r} of an action: {json.dumps(form)}." if form else ""
        self.rules = (
            "You act in an environment, one action for each of your answers. Write the action "
            "between <action> and </action>. You may think before it. Without these marks, the "
            f"whole answer is the action.{meaning}"
        )

    def action(self, text: str) -> dict[str, Any]:
        """Return the text as the field."""
        return {self.field: action_in(text)}


class JsonForm(ActionForm):
    """The answer has the action as a JSON object."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        shown = {key: value for key, value in schema.items() if key not in ("title", "description")}
        fields = schema.get("properties", {})
        shown["properties"] = {key: fields[key] for key in fields if key != _METADATA}
        self.rules = (
            "You act in an environment, one action for each of your answers. Write the action as "
            "a JSON object between <action> and </action>. You may think before it. Without these "
            f"marks, the whole answer must be the object. Its schema: {json.dumps(shown)}"
        )

    def action(self, text: str) -> dict[str, Any]:
        """Parse the object."""
        given = action_in(text)
        if given.startswith(_FENCE):
            given = given.partition("\n")[2].rpartition(_FENCE)[0]
        try:
            action = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise NoActionError(f"it is not JSON: {error}") from error
        if not isinstance(action, dict):
            raise NoActionError("it is not a JSON object")
        return action


def takes_tools(schema: Mapping[str, Any]) -> bool:
    """Whether actions are calls of tools: those of MCP, or of any environment (the base class)."""
    fields = set(schema.get("properties", {})) - {_METADATA}
    return fields == set() or {"tool_name", "arguments"} <= fields


def form_of(schema: Mapping[str, Any], settings: OpenEnvSettings) -> ActionForm:
    """Return how the model writes actions of this schema.

    :raises ConfigError: they cannot be written as the settings say.
    """
    fields = {key: form for key, form in schema.get("properties", {}).items() if key != _METADATA}
    needed = [key for key in schema.get("required", ()) if key in fields] or list(fields)
    texts = [key for key in needed if fields[key].get("type") == "string"]
    field = settings.action_field
    if field and field not in fields:
        raise ConfigError(
            f"actions of this environment have no field {field!r}, but {', '.join(fields)}",
            param="sources.openenv.action_field",
        )
    if settings.actions == "text" or (settings.actions == "auto" and field):
        if not field and not len(needed) == len(texts) == 1:
            raise ConfigError(
                f"actions of this environment have the fields {', '.join(fields)}: name the one "
                "that is the model's text with action_field, or set actions=json",
                param="sources.openenv.actions",
            )
        return TextForm(field or texts[0], schema)
    if settings.actions == "auto" and len(needed) == len(texts) == 1:
        return TextForm(texts[0], schema)
    return JsonForm(schema)


def shown(observation: Mapping[str, Any], field: str) -> str:
    """Return what the model sees of an observation.

    :param field: the field that it sees; "" for all.
    :raises ConfigError: the observation does not have this field.
    """
    fields = {key: value for key, value in observation.items() if key != _METADATA}
    if field:
        if field not in fields:
            raise ConfigError(
                f"observations of this environment have no field {field!r}, but "
                f"{', '.join(fields)}",
                param="sources.openenv.observation_field",
            )
        fields = {field: fields[field]}
    if len(fields) == 1:
        (value,) = fields.values()
        if isinstance(value, str):
            return value
        if field:
            return json.dumps(value, ensure_ascii=False)
    return json.dumps(fields, ensure_ascii=False)


def tool_result(observation: Mapping[str, Any]) -> str:
    """Return what the model sees of a tool's result: its text, its error, or all that it has."""
    error = observation.get("error")
    if isinstance(error, Mapping):
        return f"error: {error.get('message', error)}"
    result = observation.get("result")
    if isinstance(result, str):
        return result
    content = result.get("content") if isinstance(result, Mapping) else None
    if isinstance(content, Sequence) and not isinstance(content, str):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        if texts and all(isinstance(text, str) for text in texts):
            return "\n".join(map(str, texts))
    fields = {
        key: value
        for key, value in observation.items()
        if value is not None and key not in (_METADATA, "tool_name", "error")
    }
    return json.dumps(fields, ensure_ascii=False)
