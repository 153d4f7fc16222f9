"""An episode's memory of its calls, so that the next call extends the exact tokens of the last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from ajet_core.errors import RequestError
from ajet_core.server.rendering.call_metadata import (
    ARGUMENTS_DIGEST,
    BARE_CONTEXT_KEY,
    CONTEXT_KEY,
    ECHO_FIELDS,
    REASONED,
)
from ajet_core.server.rendering.canonical import (
    canonical_tools,
    message_digest,
    message_text,
    tools_digest,
)
from ajet_core.server.rendering.drift import arguments_digest, echo_fields
from ajet_core.server.rendering.messages import ChatMessage, ToolSpec
from ajet_core.server.rendering.placing import Span
from ajet_core.server.rendering.renderer import ChatRenderer, Extension
from ajet_core.server.rendering.sharing import shared_with
from ajet_core.server.rendering.suffix import extended_by_proof
from ajet_core.timeline import Call, MessageText, PlacedMessage, TokenTrie

# Whole prompts that are kept as one list; more would cost 8 bytes a token each.
_WHOLE_PROMPTS = 2


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens for one request, and where they came from.

    :param ids: [P] token ids.
    :param base: the call whose first `shared` tokens (prompt and sampled) `ids` begins with.
    :param messages: the messages that do not stand in the shared tokens as a whole, in order.
    :param how: "bridge" and "suffix" extend all tokens of `base`, the first by the renderer's own rules, the
        second by proof; "render" renders all messages, whatever they share with `base`.
    :param tools: canonical JSON text of the tools.
    :param digest: hash of tools and messages.
    :param reasoned: whether the tokens hold reasoning.
    :param echoed: fields of the answer before that the agent wrote in other bytes; see `ECHO_FIELDS`.
    :param said: all messages, of a rendered prompt.
    :param known: how many calls the session knew when it was rendered.
    """

    ids: list[int]
    base: Call | None
    shared: int
    messages: tuple[PlacedMessage, ...]
    how: Literal["bridge", "suffix", "render"]
    tools: str
    digest: bytes
    reasoned: bool
    echoed: tuple[str, ...] = ()
    said: tuple[MessageText, ...] = ()
    known: int = 0

    @property
    def parent_call_id(self) -> str | None:
        """The call that the prompt was made to go on from."""
        return None if self.how == "render" or self.base is None else self.base.call_id


@dataclass(slots=True)
class ConversationIndex:
    """Finds the call that a conversation goes on from.

    A conversation is the same if roles, texts, tool-call ids, names and parsed arguments and the tools
    are: how a client writes JSON, null for empty text, parts for text or keys of its own do not matter.
    """

    _by_key: dict[str, Call] = field(default_factory=dict)
    _trie: TokenTrie | None = None
    _whole: dict[str, list[int]] = field(default_factory=dict)
    _tools: str = ""

    @classmethod
    def restore(cls, calls: Iterable[Call]) -> Self:
        """The index over an episode's stored calls, as it was before a restart."""
        index = cls()
        for call in sorted(calls, key=lambda call: call.index):
            index.add(call)
        return index

    def __len__(self) -> int:
        return 0 if self._trie is None else len(self._trie)

    def prompt(
        self,
        renderer: ChatRenderer,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
    ) -> Prompt:
        """The tokens for `messages`, extending a known call's where that is exact.

        Every stored conversation ends with an answer, and no message of ours may be rendered again, so
        only the conversation up to the last assistant message can be the one to extend.

        :raises RequestError: the model's template cannot express the messages.
        """
        offered = self._offered(tools)
        digest = tools_digest(offered)
        answered = b""
        position = 0
        for count, message in enumerate(messages, start=1):
            digest = message_digest(digest, message)
            if message.role == "assistant":
                answered, position = digest, count
        parent = self._by_key.get(answered.hex()) if 0 < position < len(messages) else None
        if parent is not None:
            new = _named_results(messages, start=position)
            found = self._extended(renderer, parent, new, tools)
            if found is not None:
                extension, how = found
                return Prompt(
                    extension.ids,
                    parent,
                    parent.length,
                    _placed([message_text(message) for message in new], extension.spans),
                    how,
                    offered,
                    digest,
                    REASONED in parent.metadata,
                    _echoed(parent, messages[position - 1]),
                )
        return self._rendered(renderer, messages, tools, offered, digest)

    def settled(self, prompt: Prompt) -> Prompt:
        """`prompt` as it is to be recorded, now that other calls may have come with the same tokens."""
        if prompt.how != "render" or len(self) == prompt.known:
            return prompt
        shared = shared_with(self._trie, prompt.ids, prompt.said)
        passed = shared.messages - (len(prompt.said) - len(prompt.messages))
        if shared.tokens <= prompt.shared or passed < 0:
            return prompt
        return replace(
            prompt, base=shared.base, shared=shared.tokens, messages=prompt.messages[passed:]
        )

    def add(self, call: Call, prompt_ids: list[int] | None = None) -> None:
        """Remember a call that is recorded.

        One without a context key (an aborted one) is only a place to share tokens with.

        :param prompt_ids: [P] its prompt as one list, if that is at hand.
        """
        if self._trie is None:
            self._trie = TokenTrie(call.episode_id)
        self._trie.add(call)
        if call.tools:
            self._tools = call.tools
        key = call.metadata.get(CONTEXT_KEY)
        if key is None:
            return
        self._by_key[key] = call
        if (bare := call.metadata.get(BARE_CONTEXT_KEY)) is not None:
            self._by_key[bare] = call
        if prompt_ids is not None:
            self._whole[call.call_id] = prompt_ids
            if len(self._whole) > _WHOLE_PROMPTS:
                del self._whole[next(iter(self._whole))]

    def _offered(self, tools: Sequence[ToolSpec] | None) -> str:
        """The canonical text of tools; one text as long as they stay the same."""
        offered = canonical_tools(tools)
        return self._tools if offered == self._tools else offered

    def _extended(
        self,
        renderer: ChatRenderer,
        parent: Call,
        new_messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
    ) -> tuple[Extension, Literal["bridge", "suffix"]] | None:
        previous = self._whole.get(parent.call_id)
        if previous is None:
            previous = parent.prompt_ids
        reasoned = REASONED in parent.metadata
        bridged = renderer.bridge(
            previous, parent.sampled_ids, new_messages, tools, reasoned=reasoned
        )
        if bridged is not None:
            return bridged, "bridge"
        if reasoned and renderer.drops_reasoning(new_messages):
            return None
        proven = extended_by_proof(renderer, parent, previous, new_messages, tools)
        return None if proven is None else (proven, "suffix")

    def _rendered(
        self,
        renderer: ChatRenderer,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
        offered: str,
        digest: bytes,
    ) -> Prompt:
        named = _named_results(messages)
        rendering = renderer.render(named, tools)
        said = [message_text(message) for message in named]
        shared = shared_with(self._trie, rendering.ids, said)
        spans = renderer.spans(rendering, named, tools, shared.messages)
        return Prompt(
            rendering.ids,
            shared.base,
            shared.tokens,
            _placed(said[shared.messages :], spans),
            "render",
            offered,
            digest,
            _keeps_reasoning(renderer, named, tools, rendering.ids),
            said=tuple(said),
            known=len(self),
        )


def answer_metadata(prompt: Prompt, answer: ChatMessage) -> dict[str, str]:
    """What a call's metadata says about its place in the conversation.

    :param prompt: what the call was made with.
    :param answer: what the client is told.
    """
    metadata = {CONTEXT_KEY: message_digest(prompt.digest, answer).hex()}
    if answer.content and answer.tool_calls:
        bare = ChatMessage("assistant", tool_calls=answer.tool_calls)
        metadata[BARE_CONTEXT_KEY] = message_digest(prompt.digest, bare).hex()
    if prompt.reasoned or _holds_reasoning(answer):
        metadata[REASONED] = "1"
    if (given := arguments_digest(answer)) is not None:
        metadata[ARGUMENTS_DIGEST] = given
    return metadata | prompt_metadata(prompt)


def prompt_metadata(prompt: Prompt) -> dict[str, str]:
    """The part of a call's metadata that is known before its answer."""
    return {ECHO_FIELDS: ",".join(prompt.echoed)} if prompt.echoed else {}


def _echoed(parent: Call, echo: ChatMessage) -> tuple[str, ...]:
    if parent.answer is None:
        return ()
    return tuple(echo_fields(parent.answer, parent.metadata.get(ARGUMENTS_DIGEST), echo))


def _placed(texts: Sequence[MessageText], spans: Sequence[Span]) -> tuple[PlacedMessage, ...]:
    return tuple(
        PlacedMessage(start, end, text) for (start, end), text in zip(spans, texts, strict=True)
    )


def _keeps_reasoning(
    renderer: ChatRenderer,
    messages: Sequence[ChatMessage],
    tools: Sequence[ToolSpec] | None,
    ids: list[int],
) -> bool:
    """Whether a rendered prompt holds reasoning: clients send it back, but templates may leave it out."""
    if not any(message.role == "assistant" and _holds_reasoning(message) for message in messages):
        return False
    bare = [
        replace(m, reasoning=None, content=m.content.rpartition("</think>")[2].lstrip("\n"))
        if m.role == "assistant" and _holds_reasoning(m)
        else m
        for m in messages
    ]
    try:
        return renderer.render(bare, tools).ids != ids
    except RequestError:
        return True


def _holds_reasoning(message: ChatMessage) -> bool:
    return bool(message.reasoning) or "</think>" in message.content


def _named_results(messages: Sequence[ChatMessage], start: int = 0) -> list[ChatMessage]:
    """`messages` from `start` on, tool messages with the name of the function they answer.

    Some templates print that name, but clients send it only in the assistant message.
    """
    names: dict[str | None, str] = {}
    named: list[ChatMessage] = []
    for position, message in enumerate(messages):
        names.update((call.id, call.name) for call in message.tool_calls)
        if position < start:
            continue
        if message.role == "tool" and not message.name and message.tool_call_id in names:
            name = names[message.tool_call_id]
            message = ChatMessage(  # noqa: PLW2901 - the named copy takes the message's place
                "tool", message.content, tool_call_id=message.tool_call_id, name=name
            )
        named.append(message)
    return named
