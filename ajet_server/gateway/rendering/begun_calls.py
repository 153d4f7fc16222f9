"""Find the certain part of the arguments of a tool call in progress.

The call is closed in the family's format and parsed by the family's own parser. The result thus
agrees with that for the complete call, as far as it is certain: all arguments but the last one and,
if that is a string, all but its end, which may be part of the closing tag or white space before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ajet_server.gateway.rendering.messages import ToolSpec, as_json
from ajet_server.gateway.rendering.parsing import Parsed, ParsedCall
from ajet_server.gateway.rendering.renderer import ChatRenderer
from ajet_server.gateway.rendering.tagged_arguments import TAGGED_FAMILIES, takes_only_text

_UNSTABLE = "\ufffd"


@dataclass(frozen=True, slots=True)
class BegunCall:
    """A call in progress.

    :param arguments: beginning of the JSON text of its arguments.
    """

    name: str
    arguments: str


def begun_call(
    renderer: ChatRenderer,
    sampled_ids: list[int],
    prompt_ids: Sequence[int],
    tools: Sequence[ToolSpec],
    parsed: Parsed,
) -> BegunCall | None:
    """Return the call in progress at the end of an answer.

    :param parsed: the answer as sampled so far.
    :return: None if there is no such call, or nothing in it is certain.
    """
    # Nothing is certain in families that write arguments as JSON: their parsers retract the whole
    # call if its JSON is invalid.
    family = TAGGED_FAMILIES.get(renderer.call_family)
    if family is None or len(parsed.malformed) != 1:
        return None
    closing = renderer.encode(family.completion(parsed.malformed[0]))
    closed = renderer.parse([*sampled_ids, *closing], prompt_ids, tools)
    if closed.malformed or len(closed.calls) != len(parsed.calls) + 1:
        return None
    call = closed.calls[-1]
    # Once an argument has started, the name is complete.
    if not (_is_offered(call.name, tools) and isinstance(call.arguments, dict) and call.arguments):
        return None
    certain = _certain(call, tools, family.arguments.closing)
    return BegunCall(call.name, certain) if certain else None


def _certain(call: ParsedCall, tools: Sequence[ToolSpec], end: str) -> str:
    """Return the certain beginning of the JSON text of a call's arguments, "" if there is none."""
    *before, last = call.arguments
    known = {name: call.arguments[name] for name in before}
    if takes_only_text(call.name, last, tools):
        # Without the closing quotation mark and brace.
        return as_json({**known, last: _completed(call.arguments[last], end)})[:-2]
    return as_json(known)[:-1] if known else ""


def _completed(value: str, end: str) -> str:
    """Return a value without an end that may belong to the closing tag or precede it."""
    kept = value.rstrip(_UNSTABLE)
    for length in range(min(len(end) - 1, len(kept)), 0, -1):
        if kept.endswith(end[:length]):
            kept = kept[:-length]
            break
    return kept.rstrip()


def _is_offered(name: str, tools: Sequence[ToolSpec]) -> bool:
    functions = (tool.get("function") for tool in tools)
    return any(isinstance(f, dict) and f.get("name") == name for f in functions)
