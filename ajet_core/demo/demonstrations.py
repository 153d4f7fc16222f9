"""Conversations to train the demo's tokenizer and to warm up its model.

They go through the same renderer, message by message, as the conversations that the gateway serves
later: first a full render, then `bridge_to_next_turn` on the exact tokens so far. So the model meets
in its rollouts the very token stream that it was warmed up on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ajet_core.demo.gridwalk import DIRECTIONS, TOOLS, GridWalk

GOOD_MOVE_SHARE = 0.2
"""How often a demonstration moves on purpose; else at random. At the end of the warm-up the model has
picked up about half of that: it hardly succeeds more often than a random walk, but it looks at the
observation. Without that (at 0.1) some seeds never start to learn."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One rendered walk.

    :param token_ids: the conversation, as many tokens as `sampled`.
    :param sampled: True where the token is the assistant's.
    """

    token_ids: list[int]
    sampled: list[bool]


def assistant_turn(direction: str) -> str:
    """What the model writes to move, in the form that Qwen3's template gives a tool call."""
    arguments = json.dumps({"direction": direction})
    return f'<tool_call>\n{{"name": "move", "arguments": {arguments}}}\n</tool_call><|im_end|>'


def demonstrate(renderer: Any, tokenizer: Any, task_id: str, rng: random.Random) -> Demonstration:
    """Walk through a task, mostly at random, and render the conversation.

    :param renderer: a `renderers.qwen3.Qwen3Renderer` over `tokenizer`.
    """
    walk = GridWalk(task_id)
    prompt = list(renderer.render_ids(walk.messages(), tools=TOOLS, add_generation_prompt=True))
    token_ids = prompt
    sampled = [False] * len(prompt)
    while True:
        on_purpose = rng.random() < GOOD_MOVE_SHARE
        direction = rng.choice(walk.good_directions() if on_purpose else list(DIRECTIONS))
        completion = encode_turn(tokenizer, assistant_turn(direction))
        reply = walk.move(direction)
        sampled += [True] * len(completion)
        if walk.done:
            return Demonstration(token_ids + completion, sampled)
        bridged = renderer.bridge_to_next_turn(
            token_ids, completion, [{"role": "tool", "content": reply}], tools=TOOLS
        )
        if bridged is None:
            raise RuntimeError("the renderer could not extend a conversation by a tool's reply")
        token_ids = list(bridged.token_ids)
        sampled += [False] * (len(token_ids) - len(sampled))


def encode_turn(tokenizer: Any, text: str) -> list[int]:
    """The tokens of an assistant's turn: what stands between special tokens is encoded by itself,
    as the renderer does it."""
    return list(tokenizer.encode(text, add_special_tokens=False))


def plain_texts(tokenizer: Any, token_ids: Sequence[int], special: frozenset[int]) -> Iterator[str]:
    """The stretches of text between the special tokens: what a tokenizer has merges to learn for."""
    run: list[int] = []
    for token in token_ids:
        if token in special:
            if run:
                yield tokenizer.decode(run, skip_special_tokens=False)
            run = []
        else:
            run.append(token)
    if run:
        yield tokenizer.decode(run, skip_special_tokens=False)
