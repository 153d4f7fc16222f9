"""The task source `openenv`."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx2

from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import EpisodeOutcome, Task, TaskProbe
from ajet_sources import Play, Turn, TurnSource
from ajet_sources_openenv.actions import (
    ActionForm,
    NoActionError,
    form_of,
    shown,
    takes_tools,
    tool_result,
)
from ajet_sources_openenv.sessions import EnvironmentSession, InvalidMessageError, Sessions
from ajet_sources_openenv.settings import OpenEnvSettings

_NOT_IMPLEMENTED = (404, 405, 501)
_TOOL_RULES = (
    "You act in an environment with its tools. When you have done what is asked, answer without "
    "calling a tool."
)


class OpenEnvSource(TurnSource[OpenEnvSettings]):
    """An environment of OpenEnv at a URL. Each episode is a session of its own.

    Tasks are those that the environment lists, or else seeds. The payload of a task has the
    arguments of the reset.
    """

    def __init__(self, settings: OpenEnvSettings, argument: str = "") -> None:
        super().__init__(settings, argument)
        self._url = argument.rstrip("/")
        self._sessions = Sessions(self._url, settings)
        self._listed: dict[str, list[Task]] = {}
        self._form: ActionForm | None = None
        self._tools: list[dict[str, Any]] = []

    async def open(self) -> None:
        """Read the environment's schema, its tasks and its tools."""
        if urlsplit(self._url).scheme not in ("http", "https"):
            raise ConfigError(
                f"write the URL of an OpenEnv server, as in openenv:http://localhost:8000, not "
                f"{self.argument!r}",
                param="source",
            )
        async with httpx2.AsyncClient(
            base_url=self._url,
            headers=self.settings.headers,
            timeout=self.settings.step_seconds,
            follow_redirects=True,
        ) as client:
            schema = await self._schema(client)
            self._listed = await self._list_tasks(client)
        actions = self.settings.actions
        if actions == "tools" or (actions == "auto" and takes_tools(schema)):
            self._tools = await self._list_tools()
        else:
            self._form = form_of(schema, self.settings)

    async def close(self) -> None:
        """Wait until all sessions have ended."""
        await self._sessions.close()
        await super().close()

    def capacity(self) -> int | None:
        """Return how many sessions may be open at a time, if the settings say so."""
        return self.settings.sessions

    def splits(self) -> Sequence[str]:
        """Those of the environment, ``train`` first, or else as of seeds."""
        return tuple(self._listed) or super().splits()

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split; the payload has the arguments of the reset."""
        if self._listed:
            return self._listed[split]
        return [Task(row.id, payload={"seed": row.payload}) for row in super().tasks(split)]

    @contextlib.asynccontextmanager
    async def play(self, task: Task) -> AsyncIterator[Play]:
        """Reset the environment in a session."""
        arguments = {**self.settings.reset, **task.payload}
        async with self._sessions.opened(arguments) as (session, reset):
            if self._form is not None:
                yield _Written(session, reset, self._form, self.settings)
            else:
                yield _WithTools(session, reset, self._tools, self.settings)

    async def probe(self, task: Task, probe: TaskProbe) -> EpisodeOutcome | None:
        """Play with a model that always gives the same answer; None if it acts with tools."""
        return None if self._tools else await super().probe(task, probe)

    async def _schema(self, client: httpx2.AsyncClient) -> Mapping[str, Any]:
        """Return the schema of actions.

        :raises EnvironmentFailedError: the server cannot be reached.
        :raises ConfigError: it is not one of OpenEnv.
        """
        try:
            response = await client.get("/schema")
        except httpx2.TransportError as error:
            raise EnvironmentFailedError(
                f"no OpenEnv server answers at {self._url} ({error or type(error).__name__}): "
                "start the environment's server first, or correct the URL"
            ) from error
        try:
            response.raise_for_status()
            action = response.json()["action"]
            if not isinstance(action, dict):
                raise TypeError("its actions have no schema")
        except (httpx2.HTTPStatusError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"{self._url} is not a server of OpenEnv: {self._url}/schema answers "
                f"{response.status_code} and no schema of actions. Servers of openenv-core below "
                "0.2 have none: build the environment with openenv 0.10",
                param="source",
            ) from error
        return action

    async def _list_tasks(self, client: httpx2.AsyncClient) -> dict[str, list[Task]]:
        """Return the tasks that the environment lists, by split; none if it lists none.

        :raises ConfigError: it fails to list what it has.
        """
        try:
            names = await _listed(client.get("/list_environments"))
            if not names:
                return {}
            base = f"/{names[0]}"
            splits = await _listed(client.get(f"{base}/splits")) or []
            tasks: dict[str, list[Task]] = {}
            for split in sorted((split_of["name"] for split_of in splits), key="train".__ne__):
                given = await _listed(client.post(f"{base}/task_range", json={"split": split}))
                if given is None:
                    given = await _listed(client.post(f"{base}/tasks", json={"split": split}))
                specs = given["tasks"] if given else []
                by_id = {
                    f"{split}-{_id_of(spec)}": {"split": split, "index": index}
                    for index, spec in reversed(list(enumerate(specs)))
                }
                if by_id:
                    tasks[split] = [
                        Task(name, payload=by_id[name]) for name in reversed(list(by_id))
                    ]
        except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"{self._url} fails to list its tasks: {type(error).__name__}: {error}",
                param="source",
            ) from error
        return tasks

    async def _list_tools(self) -> list[dict[str, Any]]:
        """:raises ConfigError: the environment has no tools."""
        task = self.tasks(self.splits()[0])[0]
        try:
            async with self._sessions.opened({**self.settings.reset, **task.payload}) as (
                session,
                _,
            ):
                answer = await session.step({"type": "list_tools"})
            tools = [
                {
                    "type": "function",
                    "function": {
                        "name": tool["name"],
                        "description": tool.get("description") or "",
                        "parameters": tool.get("input_schema") or {"type": "object"},
                    },
                }
                for tool in answer["observation"]["tools"]
            ]
        except (InvalidMessageError, LookupError, TypeError) as error:
            raise ConfigError(
                f"{self._url} does not list tools: {error}; set actions=json or actions=text",
                param="sources.openenv.actions",
            ) from error
        if not tools:
            raise ConfigError(f"{self._url} has no tools", param="sources.openenv.actions")
        return tools


class _Written(Play):
    """Actions are written in the model's answers."""

    def __init__(
        self,
        session: EnvironmentSession,
        reset: Mapping[str, Any],
        form: ActionForm,
        settings: OpenEnvSettings,
    ) -> None:
        self._session, self._form, self._settings = session, form, settings
        self.rules = form.rules
        self.first = self._turn(reset)

    async def act(self, message: Mapping[str, Any]) -> Turn:
        """Send the action that the message has."""
        try:
            action = self._form.action(message.get("content") or "")
            answer = await self._session.step(action)
        except (NoActionError, InvalidMessageError) as error:
            return Turn(f"That is not an action: {error}", invalid=True)
        return self._turn(answer)

    def _turn(self, answer: Mapping[str, Any]) -> Turn:
        observation, reward, done = _parts(answer)
        return Turn(shown(observation, self._settings.observation_field), reward, done)


class _WithTools(Play):
    """Actions are calls of the environment's tools."""

    def __init__(
        self,
        session: EnvironmentSession,
        reset: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]],
        settings: OpenEnvSettings,
    ) -> None:
        self._session = session
        self.rules = _TOOL_RULES
        self.tools = tools
        observation, reward, done = _parts(reset)
        self.first = Turn(shown(observation, settings.observation_field), reward, done)

    async def act(self, message: Mapping[str, Any]) -> Turn:
        """Call the tools, one after the other. An answer without calls ends the episode."""
        calls = message.get("tool_calls") or ()
        if not calls:
            return Turn((), reward=0.0, done=True)
        results: list[Mapping[str, Any]] = []
        rewards: list[float] = []
        done = invalid = False
        for call in calls:
            if done:
                said = "the environment has ended the episode"
            else:
                try:
                    observation, reward, done = _parts(await self._called(call["function"]))
                    said = tool_result(observation)
                    if reward is not None:
                        rewards.append(reward)
                except (NoActionError, InvalidMessageError) as error:
                    said, invalid = f"error: {error}", True
            results.append({"role": "tool", "tool_call_id": call.get("id"), "content": said})
        return Turn(results, sum(rewards) if rewards else None, done, invalid)

    async def _called(self, function: Mapping[str, Any]) -> dict[str, Any]:
        """:raises NoActionError: the arguments are not a JSON object."""
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except (ValueError, RecursionError) as error:
            raise NoActionError(f"the arguments are not JSON: {error}") from error
        if not isinstance(arguments, dict):
            raise NoActionError("the arguments are not a JSON object")
        return await self._session.step(
            {"type": "call_tool", "tool_name": function.get("name"), "arguments": arguments}
        )


def _parts(answer: Mapping[str, Any]) -> tuple[Mapping[str, Any], float | None, bool]:
    """Return observation, reward and whether the episode has ended.

    :raises EnvironmentFailedError: the answer is not of this form.
    """
    observation, reward = answer.get("observation"), answer.get("reward")
    if not isinstance(observation, Mapping) or not isinstance(reward, int | float | None):
        raise EnvironmentFailedError(f"the environment's answer is not OpenEnv's: {answer}")
    return observation, None if reward is None else float(reward), bool(answer.get("done"))


async def _listed(request: Any) -> Any:
    """Return what the server lists; None if the environment lists no such thing."""
    response = await request
    if response.status_code in _NOT_IMPLEMENTED:
        return None
    response.raise_for_status()
    return response.json()


def _id_of(spec: Any) -> str:
    """Return the id of a task, or else a digest of its content."""
    name = (spec.get("id") or spec.get("task_id")) if isinstance(spec, dict) else None
    if isinstance(name, str | int) and name:
        return str(name)
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
