"""An episode's memory of its calls, so that the next call extends the exact tokens of the last."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from ajet_core.timeline import Call, MessageText, PlacedMessage, TokenTrie
from ajet_server.gateway.rendering.call_metadata import (
    ARGUMENTS_DIGEST,
    BARE_CONTEXT_KEY,
    CONTEXT_KEY,
    ECHO_FIELDS,
    REASONED,
)
from ajet_server.gateway.rendering.canonical import (
    ConversationDigests,
    canonical_tools,
    kept_message,
    message_digest,
    tools_digest,
)
from ajet_server.gateway.rendering.drift import arguments_digest, echo_fields
from ajet_server.gateway.rendering.messages import ChatMessage, ToolSpec
from ajet_server.gateway.rendering.prompting import (
    Asked,
    Prompt,
    Written,
    holds_reasoning,
    known_texts,
)
from ajet_server.gateway.rendering.renderer import ChatRenderer


@dataclass(frozen=True, slots=True)
class Shared:
    """The first tokens and messages of a prompt, as an earlier call has them.

    :param base: None if there is no such call.
    :param tokens: of `base`, prompt and sampled, that the prompt begins with.
    :param messages: how many messages of the prompt stand in these tokens.
    """

    base: Call | None
    tokens: int
    messages: int


def shared_with(
    trie: TokenTrie | None,
    ids: list[int],
    said: Sequence[MessageText],
    *,
    lost: Container[str] = (),
) -> Shared:
    """The most that a prompt shares with a call of `trie`, tokens and messages alike.

    Where the tokens are the same but their messages are not (the ids of tool calls, which few templates
    write), what is shared ends before the first such message, so that the record of the prompt says what
    its request said. A message whose tokens are but the beginning of another one's ("up" of "up there", in a
    template that marks no end) is not shared, although its tokens are.

    :param ids: [P] the prompt.
    :param said: its messages.
    :param lost: ids of calls that are bases of others, but not in the store.
    """
    base, tokens = trie.nearest(ids) if trie is not None else (None, 0)
    while base is not None and tokens:
        while base.base is not None and tokens <= base.shared and base.base.call_id not in lost:
            base = base.base
        known = _messages_within(base, tokens)
        same = 0
        while same < min(len(known), len(said)) and _alike(known[same].text, said[same]):
            same += 1
        if same == len(known):
            return Shared(base, tokens, same)
        tokens = min(tokens, known[same].end) - 1
    return Shared(None, 0, 0)


def _messages_within(base: Call, tokens: int) -> list[PlacedMessage]:
    """What a call that shares these tokens with `base` takes over of its conversation."""
    probe = Call("", base.episode_id, 0, [], [], [], [], 0.0, "", base=base, shared=tokens)
    return probe.conversation()


def _alike(text: MessageText, other: MessageText) -> bool:
    """As equal keys, without hashing."""
    return (
        text.content == other.content
        and text.role == other.role
        and text.tool_calls == other.tool_calls
        and text.tool_call_id == other.tool_call_id
    )


# Whole prompts that are kept as one list; more would cost 8 bytes a token each.
_WHOLE_PROMPTS = 2


@dataclass(slots=True)
class ConversationIndex:
    """Finds the call that a conversation goes on from, and the one that a prompt shares the most tokens with.

    A conversation is the same if roles, texts, tool-call ids, names and parsed arguments and the tools
    are: how a client writes JSON, null for empty text, parts for text or keys of its own do not matter.

    Tokens may be shared with a call as soon as it is on its way to the store, so that calls that end at the same
    time do not all carry the same prompt; it is extended only when it is durable.
    """

    _by_key: dict[str, Call] = field(default_factory=dict)
    _sharing: dict[str, Call] = field(default_factory=dict)  # by id, in the order they came
    _trie: TokenTrie | None = None  # of these; None if it has to be made
    _lost: set[str] = field(default_factory=set)
    _state: int = 0
    _whole: dict[str, list[int]] = field(default_factory=dict)
    _written: dict[str, list[int]] = field(default_factory=dict)
    _tools: str = ""
    _digests: ConversationDigests = field(default_factory=ConversationDigests)

    @classmethod
    def restore(cls, calls: Iterable[Call]) -> Self:
        """The index over an episode's stored calls, as it was before a restart."""
        index = cls()
        for call in sorted(calls, key=lambda call: call.index):
            index.add(call)
        return index

    def __len__(self) -> int:
        return len(self._sharing)

    @property
    def latest_messages(self) -> Sequence[ChatMessage]:
        """The messages of the last request; the next one repeats most of them."""
        return self._digests.messages

    def prompt(
        self,
        renderer: ChatRenderer,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
    ) -> Prompt:
        """The tokens for `messages`, extending a known call's where that is exact.

        :raises RequestError: the model's template cannot express the messages.
        """
        asked = self.asked(messages, tools)
        return self.made(asked, asked.write(renderer))

    def asked(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec] | None) -> Asked:
        """The request, and what is known for it: the first part of `prompt`.

        Every stored conversation ends with an answer, and no message of ours may be rendered again, so
        only the conversation up to the last assistant message can be the one to extend.

        :raises RequestError: the tools cannot be written as JSON.
        """
        offered = self._offered(tools)
        first = tools_digest(offered)
        digests = self._digests.of(first, messages)
        digest = digests[-1] if digests else first
        position = len(messages)
        while position and messages[position - 1].role != "assistant":
            position -= 1
        parent = None
        if 0 < position < len(messages):
            parent = self._by_key.get(digests[position - 1].hex())
        if parent is None:
            return Asked(messages, tools, offered, digest)
        previous = self._whole.get(parent.call_id)
        if previous is None:
            previous = parent.prompt_ids
        written = self._written.get(parent.call_id)
        return Asked(messages, tools, offered, digest, parent, position, previous, written)

    def made(self, asked: Asked, written: Written) -> Prompt:
        """The prompt, when its tokens are known: the last part of `prompt`."""
        parent = asked.parent
        extends = parent is not None and written.how != "render"
        prompt = Prompt(
            written.ids,
            parent if extends else None,
            parent.length if parent is not None and extends else 0,
            written.placed,
            0,
            written.how,
            asked.tools_text,
            asked.digest,
            written.reasoned,
            _echoed(parent, asked.messages[asked.answered - 1]) if parent and extends else (),
            written.written,
            self._state,
        )
        return prompt if extends else self._shared(prompt)

    def conversation(self, call_id: str) -> tuple[Call, list[ChatMessage]] | None:
        """A call of the episode that was answered, and all messages up to and including its answer."""
        call = self._sharing.get(call_id)
        if call is None or call.answer is None:
            return None
        return call, [kept_message(text) for text in known_texts(call)]

    def raw(self, ids: list[int]) -> Prompt:
        """A prompt that nobody rendered: text or tokens that are continued as they are."""
        digest = hashlib.sha256(b"raw" + array("I", ids).tobytes()).digest()
        return self._shared(
            Prompt(ids, None, 0, (), 0, "render", "", digest, reasoned=False, state=self._state)
        )

    def settled(self, prompt: Prompt) -> Prompt:
        """`prompt` as it is to be recorded, now that other calls may have come with the same tokens."""
        return prompt if prompt.state == self._state else self._shared(prompt)

    def add(self, call: Call, prompt_ids: list[int] | None = None) -> None:
        """Remember a call that is recorded; as `share` and `keep`."""
        self.share(call)
        self.keep(call, prompt_ids)

    def share(self, call: Call) -> None:
        """Let later calls share tokens with one that is about to be written.

        If a later call's base turns out not to be in the store, the store writes that call as a whole.
        """
        self._sharing[call.call_id] = call
        self._state += 1
        if self._trie is not None:
            self._trie.add(call)
        if call.tools:
            self._tools = call.tools

    def keep(
        self, call: Call, prompt_ids: list[int] | None = None, written: list[int] | None = None
    ) -> None:
        """Let conversations go on from a shared call, now that it is durable.

        One without a context key (an aborted one) is only a place to share tokens with.

        :param prompt_ids: [P] its prompt as one list, if that is at hand.
        :param written: [N] `Prompt.written`.
        """
        for name in (CONTEXT_KEY, BARE_CONTEXT_KEY):
            key = call.metadata.get(name)
            if key is not None:
                known = self._by_key.get(key)
                # As after a restart, whatever the order in which writes are answered.
                if known is None or known.index <= call.index:
                    self._by_key[key] = call
        if prompt_ids is not None and CONTEXT_KEY in call.metadata:
            self._whole[call.call_id] = prompt_ids
            if written is not None:
                self._written[call.call_id] = written
            if len(self._whole) > _WHOLE_PROMPTS:
                oldest = next(iter(self._whole))
                del self._whole[oldest]
                self._written.pop(oldest, None)

    def forget(self, call: Call) -> None:
        """Take a shared call back whose write failed: what shares tokens with it is stored as a whole."""
        if self._sharing.pop(call.call_id, None) is not None:
            self._lost.add(call.call_id)
            self._state += 1
            self._trie = None

    def _shared(self, prompt: Prompt) -> Prompt:
        """`prompt` on the base that it has the most in common with."""
        base = prompt.base
        before = known_texts(base) if base is not None and prompt.how != "render" else []
        said = [*before, *(message.text for message in prompt.placed)]
        found = shared_with(self._tree(), prompt.ids, said, lost=self._lost)
        standing = found.messages - len(before)
        stays = base is None or base.call_id not in self._lost
        if standing < 0 or (found.tokens <= prompt.shared and stays):
            return prompt
        return replace(prompt, base=found.base, shared=found.tokens, standing=standing)

    def _tree(self) -> TokenTrie | None:
        if self._trie is None and self._sharing:
            calls = list(self._sharing.values())
            self._trie = TokenTrie(calls[0].episode_id)
            for call in calls:
                self._trie.add(call)
        return self._trie

    def _offered(self, tools: Sequence[ToolSpec] | None) -> str:
        """The canonical text of tools; one text as long as they stay the same."""
        offered = canonical_tools(tools)
        return self._tools if offered == self._tools else offered


def answer_metadata(prompt: Prompt, answer: ChatMessage) -> dict[str, str]:
    """What a call's metadata says about its place in the conversation.

    :param prompt: what the call was made with.
    :param answer: what the client is told.
    """
    metadata = {CONTEXT_KEY: message_digest(prompt.digest, answer).hex()}
    if answer.content and answer.tool_calls:
        bare = ChatMessage("assistant", tool_calls=answer.tool_calls)
        metadata[BARE_CONTEXT_KEY] = message_digest(prompt.digest, bare).hex()
    if prompt.reasoned or holds_reasoning(answer):
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
