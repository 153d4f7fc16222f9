"""The methods that the processes of a server call in each other, with their parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from ajet_core.interfaces import EngineCapabilities, EngineInfo, EpisodeRecord
from ajet_core.protocol import AgentRule, CallSampling, ModelConfig, ServerState
from ajet_server.admission.concurrency import CallUse
from ajet_server.gateway.running_calls import RunningSnapshot
from ajet_server.workers.methods import Method


@dataclass(frozen=True, slots=True)
class Hello:
    """A gateway process introduces itself.

    :param place: which of the server's processes it is; 0 on another machine.
    :param failures: the episodes that it has opened, if it knew the server before, with
        `Session.failure` of each.
    :param url: at which other gateways reach it; "" if it shares the port of the server.
    """

    place: int
    pid: int
    failures: dict[str, str]
    url: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """An episode whose calls a gateway process is to answer.

    :param calls: those made before, in order (`wire.pack_call`).
    :param tools: the texts of their tools.
    :param next_index: `Call.index` of the next call.
    :param counts_calls: whether the gateway has to ask before each call, because the episode's
        token has a quota.
    :param watched: whether somebody watches its calls.
    :param failure: as `Session.failure`.
    """

    record: EpisodeRecord
    calls: list[Any]
    tools: list[str]
    next_index: int
    counts_calls: bool
    watched: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What happened in a gateway process since its last report.

    :param running: by episode that made a call, the number of calls that are being answered.
    :param uses: what the recorded calls used of the engine's cache.
    :param generating: the number of calls that the engine is working on.
    :param throttled: the messages of requests that were refused with 429.
    :param unread_calls: as `CompletionService.unread_calls`.
    """

    running: dict[str, int] = field(default_factory=dict)
    uses: list[CallUse] = field(default_factory=list)
    generating: int = 0
    throttled: list[str] = field(default_factory=list)
    unread_calls: str = ""


@dataclass(frozen=True, slots=True)
class Watched:
    """An episode whose running calls somebody watches.

    :param seen: as for `RunningCalls.look`.
    """

    episode_id: str
    seen: dict[str, int]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What makes a `CompletionService`; its parameters.

    :param tokenizer: as `CompletionService.tokenizer`; a gateway must have the same files.
    """

    model: ModelConfig
    info: EngineInfo
    capabilities: EngineCapabilities
    exact: bool
    tokenizer: str


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state of the run that gateway processes need.

    :param model_name: of the configured run, None without one.
    :param model: None before the first boot.
    :param engine: the Unix socket of the engine's process, and that process's id; None while calls
        are to wait.
    """

    state: ServerState = ServerState.OFFLINE
    policy_version: int = 0
    closing: bool = False
    running: bool = False
    model_name: str | None = None
    agents: dict[str, str | AgentRule] = field(default_factory=dict)
    evaluation_sampling: CallSampling = field(default_factory=CallSampling)
    model: ServedModel | None = None
    engine: tuple[str, int] | None = None


HELLO = Method("server.hello", Hello, list[str])
"""Returns those of the episodes that are no longer open."""
OPEN_EPISODE: Method[str, Opened | str] = Method("server.open_episode", str, Opened | str)
"""Takes an episode's key; returns the URL of the gateway that has the episode, if another one has.

The episode of a gateway that is leaving is released first.
"""
ADD_CALL = Method("server.add_call", list[Any], bool)
"""Takes whether the call may have been added before, and the output of `wire.pack_call`.

Returns False if the server lacks its base or its tools, so that the whole call is needed.
"""
REPORT = Method("server.report", Report, NoneType)
BEGIN_CALL = Method("server.begin_call", str, NoneType)
"""Takes the tenant of a call that counts for its quota."""
END_CALL = Method("server.end_call", str, NoneType)
JUDGED = Method("server.judged", list[str], NoneType)
"""Takes the id of an episode and `Session.failure`, which has changed."""
LEAVE = Method("server.leave", NoneType, NoneType)
"""The gateway opens no more episodes, and releases those that it has when they are needed."""

SET_STATE = Method("gateway.set_state", SharedState, NoneType)
CLOSE_EPISODE = Method("gateway.close_episode", str, NoneType)
"""Takes the id of an episode; its calls are recorded when it returns."""
RELEASE_EPISODE = Method("gateway.release_episode", str, NoneType)
"""Takes the id of an episode; returns when its calls have ended and another gateway may open it."""
LOOK = Method("gateway.look", Watched, RunningSnapshot)
"""Returns the running calls of an episode; none if the gateway does not have it."""
