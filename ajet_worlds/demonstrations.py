"""Tokens of example conversations, to train a tokenizer and to warm up a tiny model.

The examples are a novice's episodes in a world, or conversations that a program lists.

They are rendered by the same renderer, message by message, as the conversations that the gateway
serves later: a first prompt is rendered as a whole, and a continued conversation is extended by
`bridge_to_next_turn` on its exact tokens. In its rollouts the model therefore sees exactly the
tokens that it was warmed up on.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ajet_core.interfaces import World, WorldAnswer, WorldCall, WorldPrompt
from ajet_core.interfaces.world import Message
from ajet_worlds.rehearsal import RehearsedCall, rehearse


@dataclass(frozen=True, slots=True)
class ChatExample:
    """A conversation that shows the form of the answers.

    :param messages: as in the chat completions API of OpenAI; every assistant message is an answer.
    :param tools: tools of its calls, in the same form.
    """

    messages: Sequence[Message]
    tools: Sequence[Message] = ()

    def calls(self) -> Iterator[RehearsedCall]:
        """Yield the model calls of the conversation."""
        history: list[Message] = []
        for message in self.messages:
            if message["role"] != "assistant":
                history.append(message)
                continue
            answer = WorldAnswer(
                message.get("content") or "",
                tuple(
                    WorldCall(call["function"]["name"], call["function"]["arguments"], call["id"])
                    for call in message.get("tool_calls") or ()
                ),
            )
            yield RehearsedCall(WorldPrompt(tuple(history), self.tools), answer)
            history.append(answer.message())


@dataclass(slots=True)
class Demonstration:
    """One rendered conversation.

    :ivar token_ids: the conversation.
    :ivar sampled: True for the assistant's tokens; as long as `token_ids`.
    :ivar messages: the messages so far, including the last answer.
    """

    token_ids: list[int]
    sampled: list[bool]
    messages: list[Any]
    tools: list[Any]
    agent: str

    def is_continued_by(self, prompt: WorldPrompt) -> bool:
        """Return whether `prompt` extends this conversation by non-assistant messages."""
        return (
            prompt.agent == self.agent
            and list(prompt.tools) == self.tools
            and len(prompt.messages) > len(self.messages)
            and list(prompt.messages[: len(self.messages)]) == self.messages
        )


def assistant_turn(answer: WorldAnswer) -> str:
    """Return the model's text for an answer, in the form of Qwen3's template."""
    calls = [
        f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'
        for call in answer.calls
    ]
    return "\n".join([*([answer.text] if answer.text else []), *calls]) + "<|im_end|>"


def demonstrate(
    renderer: Any, tokenizer: Any, world: World, task_id: str, rng: random.Random
) -> list[Demonstration]:
    """Play a task with the novice of `world`, and render its conversations.

    :param renderer: a `renderers.qwen3.Qwen3Renderer` over `tokenizer`.
    :return: the conversations; an agent that rewrites its history has several.
    """
    return demonstrate_calls(
        renderer, tokenizer, rehearse(world, task_id, world.novice, rng).exchanges
    )


def demonstrate_calls(
    renderer: Any, tokenizer: Any, calls: Iterable[RehearsedCall]
) -> list[Demonstration]:
    """Render model calls as conversations, each call in the one that it continues."""
    conversations: list[Demonstration] = []
    for exchange in calls:
        prompt = exchange.prompt
        turn = encode_turn(tokenizer, assistant_turn(exchange.answer))
        continued = (c for c in reversed(conversations) if c.is_continued_by(prompt))
        conversation = next(continued, None)
        token_ids = None if conversation is None else _bridged(renderer, conversation, prompt)
        if token_ids is None:
            tools = list(prompt.tools)
            token_ids = list(
                renderer.render_ids(
                    list(prompt.messages), tools=tools or None, add_generation_prompt=True
                )
            )
            # The renderer does not bridge to a user's message, but usually renders the same tokens.
            if conversation is None or not _begins_with(token_ids, conversation.token_ids):
                conversation = Demonstration([], [], [], tools, prompt.agent)
                conversations.append(conversation)
        assert conversation is not None, "only a conversation can be bridged"
        known = len(conversation.token_ids)
        conversation.sampled += [False] * (len(token_ids) - known) + [True] * len(turn)
        conversation.token_ids = token_ids + turn
        conversation.messages = [*prompt.messages, exchange.answer.message()]
    return conversations


def _bridged(renderer: Any, conversation: Demonstration, prompt: WorldPrompt) -> list[int] | None:
    """Return the tokens of `prompt` that extend a conversation; None if that is impossible."""
    last = len(conversation.sampled) - conversation.sampled[::-1].index(False)
    bridged = renderer.bridge_to_next_turn(
        conversation.token_ids[:last],
        conversation.token_ids[last:],
        list(prompt.messages[len(conversation.messages) :]),
        tools=conversation.tools or None,
    )
    return None if bridged is None else list(bridged.token_ids)


def _begins_with(token_ids: list[int], beginning: list[int]) -> bool:
    return token_ids[: len(beginning)] == beginning


def encode_turn(tokenizer: Any, text: str) -> list[int]:
    """Encode an assistant's turn.

    Text between special tokens is encoded separately, as by the renderer.
    """
    return list(tokenizer.encode(text, add_special_tokens=False))


def plain_texts(tokenizer: Any, token_ids: Sequence[int], special: frozenset[int]) -> Iterator[str]:
    """Yield the texts between special tokens, from which a tokenizer learns its merges."""
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
