"""Tools as clients declare them, and what they say of when to call them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ajet_core.errors import UnsupportedError
from ajet_core.server.dialects.bodies import wrong
from ajet_core.server.rendering.messages import ToolSpec


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    :param offered: to the model, in the form that templates read.
    :param unknown: paths of those that are not, because they are of a kind that somebody else would have to run.
    """

    offered: tuple[ToolSpec, ...] = ()
    unknown: tuple[str, ...] = ()

    def chosen(
        self, choice: str, *, parallel: bool | None, name: str
    ) -> tuple[ToolSpec, ...] | None:
        """What the model is shown.

        :param choice: "auto", "none", or anything that forces a call.
        :param parallel: False if it must call no more than one.
        :param name: of the field that says so, for errors.
        :raises UnsupportedError: it cannot be held to that.
        """
        if choice == "none":
            return None
        if choice != "auto":
            raise UnsupportedError(
                f'{name} must be "auto" or "none": this server cannot force the model to call a tool',
                param=name,
            )
        if self.offered and parallel is False:
            raise UnsupportedError(
                "parallel_tool_calls: false is not supported by this server: the model decides how many tools it calls; "
                "leave it out and run the calls one after the other",
                param="parallel_tool_calls",
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
