"""Tool calls that are being written: what is certain of their arguments before the call is complete.

A call is closed as its family closes calls, and read by the family's own parser. So what is given out is what the parser
makes of the complete call, as far as that is settled: every argument but the last one, and of that, if it is a text, all
but the end, which may be a part of the tag that closes it, or white space that belongs to the tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ajet_server.gateway.rendering.messages import ToolSpec, as_json
from ajet_server.gateway.rendering.parsing import Parsed, ParsedCall
from ajet_server.gateway.rendering.renderer import ChatRenderer
from ajet_server.gateway.rendering.tagged_arguments import TAGGED_FAMILIES, takes_only_text

_UNSETTLED = "\ufffd"


@dataclass(frozen=True, slots=True)
class BegunCall:
    """A call that is being written.

    :param arguments: the beginning of the JSON text of its arguments.
    """

    name: str
    arguments: str


def begun_call(
    renderer: ChatRenderer,
    sampled_ids: list[int],
    prompt_ids: list[int],
    tools: Sequence[ToolSpec],
    parsed: Parsed,
) -> BegunCall | None:
    """The call that an answer breaks off in.

    :param parsed: the answer as far as it was sampled.
    :return: None if there is none, or nothing is certain of it.
    """
    # Families that write arguments as JSON have none of it: their parsers take all of a call back if its JSON turns
    # out to be none.
    family = TAGGED_FAMILIES.get(renderer.name)
    if family is None or len(parsed.malformed) != 1:
        return None
    closing = renderer.encode(family.completion(parsed.malformed[0]))
    closed = renderer.parse([*sampled_ids, *closing], prompt_ids, tools)
    if closed.malformed or len(closed.calls) != len(parsed.calls) + 1:
        return None
    call = closed.calls[-1]
    # Where an argument has begun, the name is complete.
    if not (_is_offered(call.name, tools) and isinstance(call.arguments, dict) and call.arguments):
        return None
    certain = _certain(call, tools, family.arguments.closing)
    return BegunCall(call.name, certain) if certain else None


def _certain(call: ParsedCall, tools: Sequence[ToolSpec], end: str) -> str:
    """The JSON text of a call's arguments up to where it may change; "" if that is at its beginning."""
    *before, last = call.arguments
    known = {name: call.arguments[name] for name in before}
    if takes_only_text(call.name, last, tools):
        # Without the quotation mark and the bracket at the end.
        return as_json({**known, last: _settled(call.arguments[last], end)})[:-2]
    return as_json(known)[:-1] if known else ""


def _settled(value: str, end: str) -> str:
    """A value without what may become white space before its end, or the tag that ends it."""
    kept = value.rstrip(_UNSETTLED)
    for length in range(min(len(end) - 1, len(kept)), 0, -1):
        if kept.endswith(end[:length]):
            kept = kept[:-length]
            break
    return kept.rstrip()


def _is_offered(name: str, tools: Sequence[ToolSpec]) -> bool:
    functions = (tool.get("function") for tool in tools)
    return any(isinstance(f, dict) and f.get("name") == name for f in functions)
