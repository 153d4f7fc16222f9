"""Samples as conversations, for fine-tuning elsewhere: each answer is trained in exactly one row.

Calls whose client disconnected and calls of untrained agents are omitted, as in training.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ajet_cli.inspect.samples import Row
from ajet_core.timeline import Call
from ajet_server.gateway.rendering.canonical import kept_message, message_digest, tools_digest
from ajet_server.gateway.rendering.messages import ChatMessage, renderer_messages
from ajet_server.store.store_reader import StoredEpisode

ConversationRows = Literal["messages", "completions"]


@dataclass(frozen=True, slots=True)
class _Conversation:
    """A call's prompt and answer.

    :param digests: of the conversation up to each message.
    """

    call: Call
    messages: Sequence[ChatMessage]
    digests: Sequence[bytes]

    @property
    def tools(self) -> list[Any] | None:
        return json.loads(self.call.tools) if self.call.tools else None

    def answers(self) -> Iterator[int]:
        """Yield the places of answers."""
        for place, message in enumerate(self.messages):
            if message.role == "assistant":
                yield place


def completion_rows(stored: StoredEpisode, untrained_agents: Collection[str]) -> Iterator[Row]:
    """Yield a row for each call, with the fields ``prompt``, ``completion`` and ``tools`` of TRL.

    Arguments of tool calls are objects, as templates take them.

    :param untrained_agents: agents whose calls are omitted, in addition to those of the episode.
    """
    record = stored.record
    for one in _conversations(stored, untrained_agents):
        messages = renderer_messages(one.messages)
        yield {
            "prompt": messages[:-1],
            "completion": messages[-1:],
            "tools": one.tools,
            "episode_id": record.episode_id,
            "task_id": record.task_id,
            "reward": record.reward,
        }


def message_rows(stored: StoredEpisode, untrained_agents: Collection[str]) -> Iterator[Row]:
    """Yield a row for each conversation, with the fields ``messages`` and ``tools`` of OpenAI.

    A call is part of the row of the call that continues it. Answers that are trained in another
    row, or that were not sampled in this run, have ``"weight": 0``. Arguments of tool calls are
    JSON text.

    :param untrained_agents: as in `completion_rows`.
    """
    all_of_them = _conversations(stored, untrained_agents)
    sampled = {one.digests[-1] for one in all_of_them}
    continued = {one.digests[at] for one in all_of_them for at in list(one.answers())[:-1]}
    trained: set[bytes] = set()
    for one in all_of_them:
        if one.digests[-1] in continued:
            continue
        messages = [_as_openai(message) for message in renderer_messages(one.messages)]
        for place in list(one.answers())[:-1]:
            digest = one.digests[place]
            if digest not in sampled or digest in trained:
                messages[place]["weight"] = 0
            trained.add(digest)
        row: Row = {"messages": messages}
        if one.tools is not None:
            row["tools"] = one.tools
        yield row


def _conversations(stored: StoredEpisode, untrained_agents: Collection[str]) -> list[_Conversation]:
    untrained = stored.record.untrained_agents.union(untrained_agents)
    result = []
    for call in stored.calls:
        if call.finish_reason == "abort" or call.answer is None or call.agent in untrained:
            continue
        texts = [*(placed.text for placed in call.conversation()), call.answer]
        messages = [kept_message(text) for text in texts]
        digest, digests = tools_digest(call.tools), []
        for message in messages:
            digest = message_digest(digest, message)
            digests.append(digest)
        result.append(_Conversation(call, messages, digests))
    return result


def _as_openai(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with the arguments of its tool calls as JSON text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_text(call) for call in calls]}


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
