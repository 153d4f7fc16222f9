"""Index an episode's calls, so that the next call extends the exact tokens of the last one."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from ajet_core.timeline import Call, MessageText, PlacedMessage
from ajet_server.embedded.trie import TokenTrie
from ajet_server.gateway.rendering.canonical import (
    ConversationDigests,
    canonical_tools,
    kept_message,
    message_digest,
    tools_digest,
)
from ajet_server.gateway.rendering.drift import arguments_digest
from ajet_server.gateway.rendering.messages import ChatMessage, ToolSpec
from ajet_server.gateway.rendering.prompting import (
    Continuation,
    Prompt,
    PromptPlan,
    holds_reasoning,
)
from ajet_server.store.call_metadata import (
    ARGUMENTS_DIGEST,
    BARE_CONTEXT_KEY,
    CONTEXT_KEY,
    ECHO_FIELDS,
    REASONED,
)

Record = Callable[[Call], Awaitable[None]]
"""Makes a call durable; awaited before its answer is returned."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The first tokens and messages of a prompt that it shares with an earlier call.

    :param base: the earlier call, None if there is none.
    :param tokens: number of tokens of `base`, prompt and sampled, with which the prompt begins.
    :param messages: number of messages of `Prompt.placed` that are entirely in these tokens.
    """

    base: Call | None
    tokens: int
    messages: int


def _longest_prefix(
    trie: TokenTrie | None, ids: array[int], said: Sequence[MessageText], lost: Container[str]
) -> SharedPrefix:
    """Return the longest prefix in tokens and messages that a prompt shares with a call of `trie`.

    Different messages can render to the same tokens. For example, few templates write the ids of
    tool calls. The prefix then ends before the first message that differs, so that the call's
    record keeps the messages of its own request. If a template does not mark the end of a message,
    the tokens of one message ("up") can begin another ("up there"). The tokens are then shared, but
    the message is not.

    :param ids: [P] the prompt.
    :param said: messages of the prompt.
    :param lost: ids of calls that are bases of other calls but are not in the store.
    """
    base, tokens = trie.nearest(ids.tolist()) if trie is not None else (None, 0)
    while base is not None and tokens:
        while base.base is not None and tokens <= base.shared and base.base.call_id not in lost:
            base = base.base
        known = _messages_within(base, tokens)
        same = 0
        while same < min(len(known), len(said)) and _alike(known[same].text, said[same]):
            same += 1
        if same == len(known):
            return SharedPrefix(base, tokens, same)
        tokens = min(tokens, known[same].end) - 1
    return SharedPrefix(None, 0, 0)


def _messages_within(base: Call, tokens: int) -> list[PlacedMessage]:
    """Return the messages of `base` that a call takes over if it shares the first tokens with it.

    :param tokens: number of these tokens.
    """
    probe = Call("", base.episode_id, 0, [], [], [], [], 0.0, "", base=base, shared=tokens)
    return probe.conversation()


def _alike(text: MessageText, other: MessageText) -> bool:
    """Return whether two messages have the same `MessageText.key`, without hashing them."""
    return (
        text.content == other.content
        and text.role == other.role
        and text.tool_calls == other.tool_calls
        and text.tool_call_id == other.tool_call_id
    )


# Number of prompts that are kept as one array; each takes 4 bytes per token.
_WHOLE_PROMPTS = 2


@dataclass(slots=True)
class ConversationIndex:
    """Finds the call from which a conversation continues, and indexes the calls that were made.

    Two conversations are the same if they have the same roles, texts, tool-call ids, names, parsed
    arguments and tools. Differences in JSON formatting, null or "" for empty text, a text or its
    parts, and additional keys do not matter.

    Tokens can be shared with a call as soon as its write to the store starts, so that concurrent
    calls do not each store the same prompt. Conversations continue from a call only when it is
    durable.

    The index has its own `TokenTrie` and does not use the run's merger: the index asks with which
    recorded tokens a prompt begins; the merger decides which contexts are trained together.
    """

    _by_key: dict[str, Call] = field(default_factory=dict)
    _sharing: dict[str, Call] = field(default_factory=dict)  # by id, in the order of arrival
    _trie: TokenTrie | None = None  # of the calls in `_sharing`; None if it has to be rebuilt
    _lost: set[str] = field(default_factory=set)
    _state: int = 0
    _whole: dict[str, array[int]] = field(default_factory=dict)
    _written: dict[str, array[int]] = field(default_factory=dict)
    _tools: str = ""
    _digests: ConversationDigests = field(default_factory=ConversationDigests)

    @classmethod
    def restore(cls, calls: Iterable[Call]) -> Self:
        """Build the index from an episode's stored calls, after a restart."""
        index = cls()
        for call in sorted(calls, key=lambda call: call.index):
            index.add(call)
        return index

    def __len__(self) -> int:
        return len(self._sharing)

    @property
    def latest_messages(self) -> Sequence[ChatMessage]:
        """The messages of the last request, most of which the next request repeats."""
        return self._digests.messages

    @property
    def answered(self) -> list[Call]:
        """The calls that were answered, in the order in which they were indexed."""
        return [call for call in self._sharing.values() if call.finish_reason != "abort"]

    def call(self, call_id: str) -> Call:
        """Return a call of the episode."""
        return self._sharing[call_id]

    def plan(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec] | None) -> PromptPlan:
        """Plan a prompt: find the call from which it continues, or the reason why there is none.

        Every stored conversation ends with the model's answer, whose sampled tokens must be reused,
        not rendered again. So a prompt can continue only the conversation up to and including its
        last assistant message.

        :raises RequestError: the tools cannot be written as JSON.
        """
        offered = self._offered(tools)
        first = tools_digest(offered)
        before = self._digests.request
        digests = self._digests.of(first, messages)
        digest = digests[-1] if digests else first
        position = len(messages)
        while position and messages[position - 1].role != "assistant":
            position -= 1
        parent = None
        if 0 < position < len(messages):
            parent = self._by_key.get(digests[position - 1].hex())
        if parent is None:
            restart = self._restart(first, messages, position, before)
            return PromptPlan(messages, tools, offered, digest, restart, self._state)
        parent_ids = self._whole.get(parent.call_id)
        if parent_ids is None:
            parent_ids = array("I", parent.prompt_ids)
        return PromptPlan(
            messages,
            tools,
            offered,
            digest,
            Continuation.TEMPLATE_DIFFERS,
            self._state,
            parent,
            position,
            parent_ids,
            self._written.get(parent.call_id),
        )

    def _restart(
        self,
        tools: bytes,
        messages: Sequence[ChatMessage],
        answered: int,
        before: tuple[bytes, Sequence[ChatMessage]],
    ) -> Continuation:
        """Return why a prompt does not continue from any call.

        :param tools: digest of the tools.
        :param answered: number of messages up to and including the last answer.
        :param before: digest of the tools, and the messages, of the previous request.
        """
        if not self._by_key:
            return Continuation.FIRST_CALL
        if not answered:
            return Continuation.NEW_CONVERSATION
        if answered == len(messages):
            return Continuation.NO_NEW_MESSAGE
        # Compare only with the previous request: keeping all requests with their tools would cost
        # time for every call.
        last_tools, last = before
        if last and tools != last_tools and tuple(messages[: len(last)]) == last:
            return Continuation.TOOLS_CHANGED
        return Continuation.HISTORY_CHANGED

    def conversation(self, call_id: str) -> tuple[Call, list[ChatMessage]] | None:
        """Return an answered call of the episode, and all messages up to and including its answer.

        :return: None if there is no such call.
        """
        call = self._sharing.get(call_id)
        if call is None or call.answer is None:
            return None
        return call, [kept_message(text) for text in _known_texts(call)]

    def prefix(self, prompt: Prompt) -> SharedPrefix:
        """Return the longest prefix that `prompt` shares with any call indexed so far."""
        parent = prompt.parent
        if parent is None:
            said = [message.text for message in prompt.placed]
            return _longest_prefix(self._tree(), prompt.ids, said, self._lost)
        continued = SharedPrefix(parent, parent.length, 0)
        if prompt.state == self._state:
            return continued
        # Calls indexed since the prompt was planned may share its new tokens.
        before = _known_texts(parent)
        said = [*before, *(message.text for message in prompt.placed)]
        longest = _longest_prefix(self._tree(), prompt.ids, said, self._lost)
        messages = longest.messages - len(before)
        if messages < 0 or longest.tokens <= parent.length:
            return continued
        return SharedPrefix(longest.base, longest.tokens, messages)

    async def commit(
        self, prompt: Prompt, make: Callable[[SharedPrefix], Call], record: Record
    ) -> Call:
        """Write the call that was made with `prompt`, add it to the index, and return it.

        Nothing is awaited between indexing a call and starting its write, so a call is written
        after its base. This lets calls that end at the same time share tokens.

        :param make: makes the call, without the tokens and messages of the shared prefix.
        """
        whole = make(self.prefix(prompt))
        call = _light(whole)
        self._share(call)
        try:
            await record(whole)
        except BaseException:
            self._forget(call)
            raise
        # Only calls on disk may be continued.
        self._keep(call, prompt.ids, prompt.written)
        return whole

    def add(self, call: Call, prompt_ids: array[int] | None = None) -> None:
        """Add a recorded call to the index."""
        call = _light(call)
        self._share(call)
        self._keep(call, prompt_ids)

    def _share(self, call: Call) -> None:
        """Let later calls share tokens with a call that is about to be written.

        If the write of the base fails, the store writes the later call in full, without reference
        to the base.
        """
        self._sharing[call.call_id] = call
        self._state += 1
        if self._trie is not None:
            self._trie.add(call)
        if call.tools:
            self._tools = call.tools

    def _keep(
        self, call: Call, prompt_ids: array[int] | None = None, written: array[int] | None = None
    ) -> None:
        """Let conversations continue from a shared call that is now durable.

        A call without a context key, such as an aborted one, only shares its tokens.

        :param prompt_ids: [P] the call's prompt as one array, if available.
        :param written: [N] `Prompt.written`.
        """
        for name in (CONTEXT_KEY, BARE_CONTEXT_KEY):
            key = call.metadata.get(name)
            if key is not None:
                known = self._by_key.get(key)
                # The latest index wins, as after a restart, even if writes complete out of order.
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

    def _forget(self, call: Call) -> None:
        """Remove a shared call whose write failed.

        Calls that share its tokens are then stored in full.
        """
        if self._sharing.pop(call.call_id, None) is not None:
            self._lost.add(call.call_id)
            self._state += 1
            self._trie = None

    def _tree(self) -> TokenTrie | None:
        if self._trie is None and self._sharing:
            calls = list(self._sharing.values())
            self._trie = TokenTrie(calls[0].episode_id)
            for call in calls:
                self._trie.add(call)
        return self._trie

    def _offered(self, tools: Sequence[ToolSpec] | None) -> str:
        """Return the canonical text of tools, the same object as long as they do not change."""
        offered = canonical_tools(tools)
        return self._tools if offered == self._tools else offered


def answer_metadata(prompt: Prompt, answer: ChatMessage) -> dict[str, str]:
    """Return the metadata that describes a call's place in the conversation.

    :param prompt: prompt of the call.
    :param answer: answer that the client gets.
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
    """Return the part of a call's metadata that is known before its answer."""
    return {ECHO_FIELDS: ",".join(prompt.echoed)} if prompt.echoed else {}


def _known_texts(call: Call) -> list[MessageText]:
    """Return the texts of a conversation up to and including a call's answer."""
    said = [message.text for message in call.conversation()]
    return said if call.answer is None else [*said, call.answer]


def _light(call: Call) -> Call:
    """Return a call without what its tokens were sampled from, which can be large."""
    return call if call.sampled_from is None else replace(call, sampled_from=None)
