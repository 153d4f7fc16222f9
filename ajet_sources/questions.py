"""Sources whose tasks are questions: the model is asked once, and its answer is scored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx

from ajet_core.errors import EnvironmentFailedError
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, SettingsT_co, Task, TaskSource

_ERROR = 400
_SHOWN = 500


async def ask(
    episode: ModelEndpoint, messages: Sequence[Mapping[str, Any]], client: httpx.AsyncClient
) -> str:
    """Ask the model of an episode for a chat completion, and return the text of its answer.

    :raises RuntimeError: the endpoint refused the call, or its answer has no text.
    :raises httpx.TransportError: the endpoint cannot be reached.
    """
    response = await client.post(
        f"{episode.base_url}/chat/completions",
        json={"model": episode.model, "messages": list(messages), **episode.sampling},
        headers={"authorization": f"Bearer {episode.api_key}"},
    )
    if response.status_code >= _ERROR:
        said = response.text.replace(episode.api_key, "***")[:_SHOWN]
        raise RuntimeError(f"the model's endpoint answered {response.status_code}: {said}")
    try:
        return response.json()["choices"][0]["message"]["content"] or ""
    except (ValueError, LookupError, TypeError) as error:
        raise RuntimeError("the model's endpoint answered with no chat completion") from error


class QuestionSource(TaskSource[SettingsT_co]):
    """Asks the model one question for each episode. Subclasses define `question` and `score`."""

    def __init__(self, settings: SettingsT_co, argument: str = "") -> None:
        super().__init__(settings, argument)
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close the connections to the model; subclasses call this too."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    @property
    def client(self) -> httpx.AsyncClient:
        """Connections to the model, for all episodes."""
        if self._client is None:
            # How long an answer takes is up to the server and to the runner's time limit.
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(None, connect=30.0),
                limits=httpx.Limits(max_connections=None),
            )
        return self._client

    def messages(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """Return what the model is asked, as messages."""
        return [{"role": "user", "content": self.question(task)}]

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> EpisodeOutcome:
        """Ask the question and score the answer."""
        answer = await ask(episode, self.messages(task), self.client)
        outcome = await self.score(task, answer)
        if outcome is None:
            raise EnvironmentFailedError(f"task {task.id!r} could not be scored")
        return replace(outcome, answer=answer)

    @abstractmethod
    def question(self, task: Task) -> str:
        """Return the question."""

    @abstractmethod
    async def score(self, task: Task, answer: str) -> EpisodeOutcome | None:
        """Score an answer."""
