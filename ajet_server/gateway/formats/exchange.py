"""A request that is being answered, and the episode it belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from ajet_core.timeline import Call
from ajet_server.gateway.call_seeds import CallSeeds, EpisodeSeeds
from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.gateway.formats.retries import Answers
from ajet_server.gateway.rendering.conversation import ConversationIndex, Record
from ajet_server.gateway.rendering.prompting import Prompt
from ajet_server.gateway.running_calls import RunningCalls


@dataclass(slots=True)
class Session:
    """The part of an episode's state that the dialects use.

    :param index: index of the episode's conversations.
    :param next_index: `Call.index` of the next call that completes.
    :param tokens: sampled in the recorded calls.
    :param answered: the number of recorded calls with an answer, by agent.
    :param answers: answers for retried requests.
    :param seeds: seeds of its calls, once an exact run has made one.
    :param running: its calls that are being answered here.
    :param failure: why the server failed to answer its last call; "" if it did not fail.
    :param failures: the number of calls that it failed to answer.
    """

    episode_id: str
    index: ConversationIndex
    next_index: int = 0
    tokens: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    answers: Answers = field(default_factory=Answers)
    seeds: EpisodeSeeds | None = None
    running: RunningCalls = field(default_factory=RunningCalls)
    failure: str = ""
    failures: int = 0

    def take_index(self) -> int:
        """Return the index of the next call, and advance it."""
        index = self.next_index
        self.next_index += 1
        return index

    def note(self, call: Call) -> None:
        """Count a call that is recorded."""
        self.next_index = max(self.next_index, call.index + 1)
        self.tokens += len(call.sampled_ids)
        self.answered[call.agent] += call.finish_reason != "abort"

    def failed(self, why: str) -> None:
        """Note that the server failed to answer a call."""
        self.failure = why
        self.failures += 1


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that is being answered, with everything that its choices have in common.

    :param max_tokens: most tokens of a choice: the requested number, limited by the context and by
        the server.
    :param grammar: grammar of the answers, "" if they are not constrained.
    :param record: writes a call to the store.
    :param agent: name of the calling agent, "" if it has none.
    :param model_name: name of the model in answers.
    :param completion_id: id of the answer, unique in the run.
    :param created_at: unix seconds.
    :param seeds: of the choices in an exact run; None in others.
    :param traceparent: as `GenerateRequest.traceparent`.
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
    seeds: CallSeeds | None = None
    traceparent: str = ""

    @property
    def lowered_max_tokens(self) -> int | None:
        """The effective limit on tokens if the request exceeds it, else None."""
        asked = self.request.max_tokens
        return self.max_tokens if asked is not None and asked > self.max_tokens else None

    @property
    def is_watched(self) -> bool:
        """Whether somebody watches the calls of the episode as it begins."""
        return self.session.running.watched(self.created_at)

    def running(self, generations: Sequence[Generation]) -> AbstractContextManager[None]:
        """Show its prompt and generations to those who watch while the context is open."""
        placed = self.prompt.placed
        return self.session.running.showing(self.agent, self.created_at, placed, generations)

    def call_id(self, choice: int) -> str:
        """Return the id of the call that makes a choice."""
        return self.completion_id if self.request.n == 1 else f"{self.completion_id}-{choice}"
