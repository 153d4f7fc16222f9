"""Which tokens of a tree belong to which message."""

from __future__ import annotations

from dataclasses import dataclass

from ajet_core.timeline.tree import TokenTree


@dataclass(frozen=True, slots=True)
class NodeRole:
    """Tokens of a node that belong to one message; what is between messages is of the template.

    :param start: offset of the first one in the node.
    :param end: offset behind the last one.
    :param role: of the message.
    :param name: of a tool message: the function that was called.
    """

    start: int
    end: int
    role: str
    name: str = ""


def node_roles(tree: TokenTree) -> list[list[NodeRole]]:
    """[nodes] the roles of each node's tokens, as told by the first call that passes through it."""
    starts: list[int] = []
    for node in tree.nodes:
        parent = node.parent
        starts.append(0 if parent < 0 else starts[parent] + len(tree.nodes[parent].token_ids))
    found: dict[int, list[NodeRole]] = {}
    for call, end in zip(tree.calls, tree.ends, strict=True):
        spans = [(m.start, m.end, m.text.role, m.text.name) for m in call.messages]
        spans.append((call.prompt_length, call.length, "assistant", ""))
        # A relaxed policy may put a call at another depth than its own tokens say.
        depth = starts[end] + len(tree.nodes[end].token_ids) if end >= 0 else 0
        shift = depth - call.length
        number = end
        # What is above a node that an earlier call passed through was passed through by that call as well.
        while number >= 0 and number not in found:
            start, size = starts[number], len(tree.nodes[number].token_ids)
            found[number] = [
                NodeRole(
                    start=max(first + shift - start, 0),
                    end=min(last + shift - start, size),
                    role=role,
                    name=name,
                )
                for first, last, role, name in spans
                if first + shift < start + size and last + shift > start and last > first
            ]
            number = tree.nodes[number].parent
    return [found.get(number, []) for number in range(len(tree.nodes))]
