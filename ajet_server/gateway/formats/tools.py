"""Tools as clients declare them, and what they say of when to call them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ajet_core.errors import RequestError
from ajet_server.gateway.formats.bodies import wrong
from ajet_server.gateway.formats.constraints import ToolChoice
from ajet_server.gateway.rendering.messages import ToolSpec


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    :param offered: to the model, in the form that templates read.
    :param unknown: paths of those that are not, because they are of a kind that somebody else would have to run.
    """

    offered: tuple[ToolSpec, ...] = ()
    unknown: tuple[str, ...] = ()

    def chosen(self, choice: ToolChoice | None) -> tuple[ToolSpec, ...] | None:
        """What the model is shown.

        :param choice: None if it shall call none.
        :raises RequestError: it must call one, and there is none.
        """
        if choice is None:
            return None
        if choice.forced and not self.offered:
            raise RequestError(
                f"{choice.param}: there are no tools to be called", param=choice.param
            )
        return self.offered or None


def function_spec(function: Any, path: str, schema: str = "parameters") -> ToolSpec:
    """A function as templates read it.

    :param function: its name, and perhaps description and schema.
    :param schema: the key of the JSON schema of its arguments.
    :raises RequestError: it has not the right form.
    """
    if not isinstance(function, dict):
        wrong(path, "an object with name and description")
    name = function.get("name")
    if not (isinstance(name, str) and name):
        wrong(f"{path}.name", "a non-empty string")
    parameters = function.get(schema)
    if not isinstance(parameters, dict | None):
        wrong(f"{path}.{schema}", "a JSON schema object")
    spec: dict[str, Any] = {"name": name}
    if isinstance(function.get("description"), str):
        spec["description"] = function["description"]
    if parameters is not None:
        spec["parameters"] = parameters
    return {"type": "function", "function": spec}
