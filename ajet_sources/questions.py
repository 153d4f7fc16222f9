"""Sources whose tasks are questions: the model is asked once, and its answer is scored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx2

from ajet_core.errors import EnvironmentFailedError
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, SettingsT_co, Task, TaskSource

_ERROR = 400
_SHOWN = 500


async def chat(
    episode: ModelEndpoint,
    messages: Sequence[Mapping[str, Any]],
    client: httpx2.AsyncClient,
    **fields: Any,
) -> dict[str, Any]:
    """Ask the model of an episode for a chat completion, and return the message of its answer.

    :param fields: further fields of the request, such as ``tools``.
    :raises RuntimeError: the endpoint refused the call, or its answer has no message.
    :raises httpx2.TransportError: the endpoint cannot be reached.
    """
    response = await client.post(
        f"{episode.base_url}/chat/completions",
        json={"model": episode.model, "messages": list(messages), **fields, **episode.sampling},
        headers={"authorization": f"Bearer {episode.api_key}"},
    )
    if response.status_code >= _ERROR:
        said = response.text.replace(episode.api_key, "***")[:_SHOWN]
        raise RuntimeError(f"the model's endpoint answered {response.status_code}: {said}")
    try:
        return dict(response.json()["choices"][0]["message"])
    except (ValueError, LookupError, TypeError) as error:
        raise RuntimeError("the model's endpoint answered with no chat completion") from error


async def ask(
    episode: ModelEndpoint, messages: Sequence[Mapping[str, Any]], client: httpx2.AsyncClient
) -> str:
    """Ask as `chat` does, and return the text of the answer."""
    return (await chat(episode, messages, client)).get("content") or ""


class ModelClient:
    """Connections to the models of all episodes, opened when first needed."""

    def __init__(self) -> None:
        self._client: httpx2.AsyncClient | None = None

    def get(self) -> httpx2.AsyncClient:
        """Return the client."""
        if self._client is None:
            # How long an answer takes is up to the server and to the runner's time limit.
            self._client = httpx2.AsyncClient(
                timeout=httpx2.Timeout(None, connect=30.0),
                limits=httpx2.Limits(max_connections=None),
            )
        return self._client

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class QuestionSource(TaskSource[SettingsT_co]):
    """Asks the model one question for each episode. Subclasses define `question` and `score`."""

    def __init__(self, settings: SettingsT_co, argument: str = "") -> None:
        super().__init__(settings, argument)
        self._models = ModelClient()

    async def close(self) -> None:
        """Close the connections to the model; subclasses call this too."""
        await self._models.close()

    @property
    def client(self) -> httpx2.AsyncClient:
        """Connections to the model, for all episodes."""
        return self._models.get()

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
