"""A request that is being answered, and the episode it belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field

from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.gateway.formats.retries import Answers
from ajet_server.gateway.rendering.conversation import ConversationIndex, Record
from ajet_server.gateway.rendering.prompting import Prompt


@dataclass(slots=True)
class Session:
    """An episode as the dialects know it.

    :param index: the episode's conversations.
    :param next_index: `Call.index` of the next call that completes.
    :param answers: for requests that are sent again.
    """

    episode_id: str
    index: ConversationIndex
    next_index: int = 0
    answers: Answers = field(default_factory=Answers)

    def take_index(self) -> int:
        """The next call's index."""
        index = self.next_index
        self.next_index += 1
        return index


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that is being answered, with all that its choices have in common.

    :param max_tokens: most tokens of a choice: what was asked for, if the context has room for it.
    :param grammar: what its answers are held to, "" if they may be anything.
    :param model_name: what answers say the model is.
    :param completion_id: the answer's, unique in the run.
    :param created_at: unix seconds.
    """

    session: Session
    request: ModelRequest
    prompt: Prompt
    max_tokens: int
    grammar: str
    record: Record
    agent: str
    model_name: str
    completion_id: str
    created_at: float

    @property
    def lowered_max_tokens(self) -> int | None:
        """The limit that counts, where the request asked for more."""
        asked = self.request.max_tokens
        return self.max_tokens if asked is not None and asked > self.max_tokens else None

    def call_id(self, choice: int) -> str:
        """The id of the call that makes a choice."""
        return self.completion_id if self.request.n == 1 else f"{self.completion_id}-{choice}"
