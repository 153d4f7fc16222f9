"""The gateway's record of one model call."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import chain

from ajet_core.timeline.message import MessageText, PlacedMessage
from ajet_core.timeline.sampled_from import SampledFrom


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One model call, token by token.

    A prompt of P tokens is stored as the difference to `base`: the number of tokens `shared` with
    it, and S further tokens. The calls of a conversation therefore take space and time linear in
    its length. T tokens were sampled. Calls are equal if their content is, however it is stored.

    :param call_id: unique in the store.
    :param episode_id: the episode whose key was used for the call.
    :param index: 0-based order of the call's completion within its episode.
    :param suffix_ids: [S] token ids of the prompt after the shared ones; all without a base. A list
        becomes an array of uint32, which the garbage collector need not read.
    :param sampled_ids: [T] sampled token ids, including the stop token.
    :param logprobs: [T] natural-log probability of each sampled token under the sampling
        distribution: logits divided by `temperature` (by 1 if that is 0), over the full vocabulary,
        before top-p or top-k.
    :param policy_versions: [T] version of the weights that sampled each token.
    :param temperature: 0 means greedy.
    :param finish_reason: "stop", "length", or "abort" (the client disconnected).
    :param base: an earlier call of the episode.
    :param shared: number of tokens of `base`, prompt and sampled, that the prompt begins with.
    :param agent: name of the agent that made the call, "" if it gave none.
    :param created_at: unix seconds.
    :param messages: those of the prompt that are not completely in the shared tokens, in order.
    :param answer: the answer sent to the client; None if none was sent (an aborted call).
    :param tools: JSON text of the offered tools, "" if there were none.
    :param sampled_from: distribution of the sampled tokens; None if the policy's own, or unknown.
    """

    call_id: str
    episode_id: str
    index: int
    suffix_ids: Sequence[int]
    sampled_ids: list[int]
    logprobs: list[float]
    policy_versions: list[int]
    temperature: float
    finish_reason: str
    base: Call | None = field(default=None, repr=False)
    shared: int = 0
    agent: str = ""
    created_at: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    messages: tuple[PlacedMessage, ...] = field(default=(), repr=False)
    answer: MessageText | None = field(default=None, repr=False)
    tools: str = field(default="", repr=False)
    sampled_from: SampledFrom | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.suffix_ids, list):
            try:
                object.__setattr__(self, "suffix_ids", array("I", self.suffix_ids))
            except (OverflowError, TypeError) as error:
                raise ValueError(f"call {self.call_id}: a token id is invalid: {error}") from None
        sampled = len(self.sampled_ids)
        if len(self.logprobs) != sampled or len(self.policy_versions) != sampled:
            counts = f"{len(self.logprobs)} logprobs and {len(self.policy_versions)} versions"
            raise ValueError(f"call {self.call_id} has {sampled} sampled tokens, but {counts}")
        if self.sampled_from is not None and len(self.sampled_from.logprobs) != sampled:
            raise ValueError(f"call {self.call_id}: sampled_from has another number of tokens")
        base = self.base
        if not 0 <= self.shared <= (0 if base is None else base.length):
            raise ValueError(
                f"call {self.call_id} shares {self.shared} tokens with "
                + ("no call" if base is None else f"call {base.call_id}, which has {base.length}")
            )
        if base is not None and base.episode_id != self.episode_id:
            raise ValueError(
                f"call {self.call_id} belongs to episode {self.episode_id}, but its base "
                f"{base.call_id} to episode {base.episode_id}"
            )

    @property
    def prompt_length(self) -> int:
        """Number P of prompt tokens."""
        return self.shared + len(self.suffix_ids)

    @property
    def length(self) -> int:
        """Number P + T of prompt and sampled tokens."""
        return self.shared + len(self.suffix_ids) + len(self.sampled_ids)

    @property
    def prompt_ids(self) -> list[int]:
        """[P] the exact token ids that the engine received; a new list each time."""
        parts = [self.suffix_ids]
        base, wanted = self.base, self.shared
        while base is not None and wanted:
            prompt = base.prompt_length
            if wanted > prompt:
                parts.append(base.sampled_ids[: wanted - prompt])
                wanted = prompt
            if wanted > base.shared:
                parts.append(base.suffix_ids[: wanted - base.shared])
                wanted = base.shared
            base = base.base
        return list(chain.from_iterable(reversed(parts)))

    @property
    def token_ids(self) -> list[int]:
        """[P + T] prompt and sampled tokens; a new list each time."""
        return [*self.prompt_ids, *self.sampled_ids]

    @property
    def parent_call_id(self) -> str | None:
        """The latest call all of whose tokens the prompt begins with: the one it continues."""
        base, shared = self.base, self.shared
        while base is not None and shared < base.length:
            # Of two calls with the same prompt, the second has the first as base, and its parent.
            shared = min(shared, base.shared)
            base = base.base
        return None if base is None else base.call_id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Call):
            return NotImplemented
        return (
            all(getattr(self, name) == getattr(other, name) for name in _OWN_FIELDS)
            and self.prompt_ids == other.prompt_ids
            and self.conversation() == other.conversation()
        )

    def __hash__(self) -> int:
        return hash(self.call_id)

    def conversation(self) -> list[PlacedMessage]:
        """Return all messages of the prompt, in order, including those of the base."""
        chain: list[tuple[Call, int]] = []
        call, wanted = self.base, self.shared
        while call is not None and wanted:
            chain.append((call, wanted))
            wanted = min(wanted, call.shared)
            call = call.base
        messages: list[PlacedMessage] = []
        for link, limit in reversed(chain):
            messages += link.messages
            if limit == link.length and link.answer is not None:
                messages.append(PlacedMessage(link.prompt_length, link.length, link.answer))
            # A message that extends beyond the shared tokens differs in the call that shares them.
            while messages and messages[-1].end > limit:
                messages.pop()
        return [*messages, *self.messages]


_OWN_FIELDS = tuple(
    f.name for f in fields(Call) if f.name not in {"base", "shared", "suffix_ids", "messages"}
)
