"""Map the tokens of a tree to the roles of their messages."""

from __future__ import annotations

from dataclasses import dataclass

from ajet_core.timeline.tree import TokenTree


@dataclass(frozen=True, slots=True)
class NodeRole:
    """The tokens of a node that belong to one message; those between messages are the template's.

    :param start: offset of the first token in the node.
    :param end: offset after the last token.
    :param role: role of the message.
    :param name: the function that was called, for a tool message.
    """

    start: int
    end: int
    role: str
    name: str = ""


def node_roles(tree: TokenTree) -> list[list[NodeRole]]:
    """Return [nodes] the roles of each node's tokens, from the first call that passes it."""
    starts: list[int] = []
    for node in tree.nodes:
        parent = node.parent
        starts.append(0 if parent < 0 else starts[parent] + len(tree.nodes[parent].token_ids))
    roles: dict[int, list[NodeRole]] = {}
    for call, end in zip(tree.calls, tree.ends, strict=True):
        # A merger that is not exact can put a call at a depth other than its own length.
        depth = starts[end] + len(tree.nodes[end].token_ids) if end >= 0 else 0
        shift = depth - call.length
        number = end
        new = []
        # An earlier call that passed through a node also passed through all nodes above it.
        while number >= 0 and number not in roles:
            new.append(number)
            number = tree.nodes[number].parent
        # Usually another call passed through what the call has in common with its base. The base's
        # messages are only needed if not, because reading them takes time for the whole prompt.
        reaches_base = bool(new) and starts[new[-1]] - shift < call.shared
        messages = call.conversation() if reaches_base else call.messages
        spans = [(m.start, m.end, m.text.role, m.text.name) for m in messages]
        spans.append((call.prompt_length, call.length, "assistant", ""))
        for number in new:
            start, size = starts[number], len(tree.nodes[number].token_ids)
            roles[number] = [
                NodeRole(
                    start=max(first + shift - start, 0),
                    end=min(last + shift - start, size),
                    role=role,
                    name=name,
                )
                for first, last, role, name in spans
                if first + shift < start + size and last + shift > start and last > first
            ]
    return [roles.get(number, []) for number in range(len(tree.nodes))]
