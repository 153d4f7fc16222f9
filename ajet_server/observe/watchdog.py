"""Explain why a server makes no progress.

Every state has a time after which a finding explains it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from ajet_core.protocol import (
    BatchProgress,
    Finding,
    HealthKind,
    Quarantine,
    ServerState,
    TagProgress,
)
from ajet_server.observe.events import EventLog

_log = logging.getLogger("ajet.server")

WAITS = frozenset(
    {
        "engine_stalled",
        "waiting_for_late",
        "slow_state",
        "waiting_for_episodes",
        "no_signal",
        "incomplete_tasks",
        "no_client",
        "joint_in_doubt",
    }
)
"""Codes of findings that are normal until they have lasted long enough to be stuck."""

_BLOCKING = WAITS | {"paused"}
_TRAINING = frozenset(get_args(HealthKind))
_SHOWN = 3
# Shorter pauses between two calls are normal.
_QUIET_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class OpenView:
    """An open episode.

    :param idle: seconds since its last model call.
    :param seen_ago: seconds since its last sign of life, a model call or a heartbeat.
    :param lease_left: seconds until its lease ends and it is aborted.
    :param calls: its model calls that are being answered.
    :param steps_ago: steps that were trained since it was claimed.
    :param late: whether a complete batch waits for its task, which would be too old for the next
        batch.
    """

    episode_id: str
    task_id: str
    client_id: str
    idle: float
    lease_left: float
    calls: int
    seen_ago: float = 0.0
    steps_ago: int = 0
    late: bool = False

    @property
    def beats(self) -> bool:
        """Whether heartbeats have come since its last model call."""
        return self.seen_ago + _QUIET_SECONDS <= self.idle


@dataclass(frozen=True, slots=True)
class DoubtView:
    """A prepared part of a joint episode.

    :param waited: seconds since it was prepared.
    :param why: why the outcome is unknown.
    """

    episode_id: str
    arbiter: str
    waited: float
    why: str


@dataclass(frozen=True, slots=True)
class ServerView:
    """The state of the server as the watchdog sees it. Times are in seconds.

    :param in_state: time that the server has been in its state.
    :param still: time since the last progress of a claim, a call or the end of an episode.
    :param late_waited: time that a complete batch has waited for late episodes, at most
        `late_seconds`.
    :param lacking: started tasks of the batch: name, episodes ended, episodes open.
    :param tags: how full the batch is, by tag of the mixture.
    :param zero_variance: number of complete tasks whose rewards are all equal, if the batch needs
        tasks with differing rewards.
    :param throttled: number of requests refused with 429 in the last minute, and the last message.
    :param in_doubt: prepared parts of joint episodes.
    :param unread_calls: why calls of the offered tools reach agents as text; "" if they do not.
    :param training: whether a step is being trained; in async mode rollouts may have to wait for
        it.
    :param activity: what the server does in a state other than ROLLING, or in training.
    """

    state: ServerState
    in_state: float
    still: float
    open: Sequence[OpenView] = ()
    late_waited: float = 0.0
    late_seconds: float = 0.0
    waiting_claims: int = 0
    batch: BatchProgress | None = None
    episodes_per_task: int = 0
    lacking: Sequence[tuple[str, int, int]] = ()
    tags: Mapping[str, TagProgress] = field(default_factory=dict)
    zero_variance: int = 0
    throttled: tuple[int, str] = (0, "")
    unread_calls: str = ""
    engine_stalled: float = 0.0
    paused: str = ""
    quarantined: Sequence[Quarantine] = ()
    in_doubt: Sequence[DoubtView] = ()
    activity: str = ""
    training: bool = False


def diagnose(view: ServerView, stuck_seconds: float) -> list[Finding]:
    """Return the findings about a server, those that block its progress first.

    :param stuck_seconds: a cause that has lasted this long counts as stuck.
    """

    def finding(code: str, message: str, seconds: float) -> Finding:
        stuck = seconds >= stuck_seconds
        return Finding(code=code, message=message, seconds=round(seconds, 3), stuck=stuck)

    findings: list[Finding] = []
    if view.state is ServerState.PAUSED:
        findings.append(finding("paused", f"the run is paused: {view.paused}", view.in_state))
    elif view.state is ServerState.ROLLING:
        findings += [finding(*cause) for cause in _why_rolling_waits(view)]
    elif view.state is not ServerState.OFFLINE and view.in_state >= stuck_seconds:
        message = f"{view.state} for {view.in_state:.0f} s: {view.activity}"
        findings.append(finding("slow_state", message, view.in_state))
    refused, last = view.throttled
    if refused:
        findings.append(
            Finding(
                code="throttled",
                message=(
                    f"{refused} requests were rejected with 429 in the last minute. Last reason: "
                    f"{last}"
                ),
                seconds=60.0,
                stuck=False,
            )
        )
    if view.unread_calls:
        findings.append(
            Finding(code="tool_calls_unread", message=view.unread_calls, seconds=0.0, stuck=False)
        )
    if doubtful := [part for part in view.in_doubt if part.waited >= _QUIET_SECONDS]:
        longest = max(part.waited for part in doubtful)
        findings.append(finding("joint_in_doubt", _in_doubt(doubtful), longest))
    if view.quarantined:
        findings.append(
            Finding(code="tasks_quarantined", message=_quarantined(view), seconds=0.0, stuck=False)
        )
    return findings


def by_gravity(findings: Sequence[Finding]) -> list[Finding]:
    """Order findings: what blocks the server, what makes training useless, and all others.

    A run whose clients are gone is often at its end. What its training suffers from is worse.
    """

    def place(finding: Finding) -> int:
        if finding.code in _TRAINING:
            return 1
        if finding.code == "no_client":
            return 2
        return 0 if finding.stuck or finding.code in _BLOCKING else 3

    return sorted(findings, key=place)


def _why_rolling_waits(view: ServerView) -> Iterator[tuple[str, str, float]]:
    if view.engine_stalled > _QUIET_SECONDS:
        calls = sum(episode.calls for episode in view.open)
        stalled = view.engine_stalled
        text = f"the engine has sampled nothing for {stalled:.0f} s; {calls} calls wait for it"
        yield "engine_stalled", text, stalled
        return
    if late := [episode for episode in view.open if episode.late]:
        yield "waiting_for_late", _late(late, view), view.late_waited
        return
    if view.still < _QUIET_SECONDS or any(episode.calls for episode in view.open):
        return
    if view.training:
        if view.waiting_claims:
            text = (
                f"{view.activity}; {view.waiting_claims} claims wait because rollouts have reached "
                "max_staleness"
            )
            yield "slow_state", text, view.still
    elif view.open:
        yield "waiting_for_episodes", _waiting(view), min(e.idle for e in view.open)
    elif view.zero_variance and view.batch is not None:
        text = (
            f"{view.zero_variance} tasks are complete, but all rewards of each are equal, "
            f"and the batch takes only tasks whose rewards differ ({view.batch.ready} of "
            f'{view.batch.needed}): roll out other tasks, or set batch.full_by = "tasks"'
        )
        yield "no_signal", text, view.still
    elif view.lacking or view.waiting_claims:
        yield "incomplete_tasks", _incomplete(view), view.still
    else:
        text = f"no client has claimed or worked on an episode for {view.still:.0f} s"
        yield "no_client", "; ".join(filter(None, [text, shortage(view.batch)])), view.still


def shortage(batch: BatchProgress | None) -> str:
    """Describe what the batch lacks, without naming tasks."""
    if batch is None:
        return ""
    unit = "episodes" if batch.full_by == "episodes" else "tasks"
    return (
        f"the batch has {batch.ready} of {batch.needed} {unit}; it is trained once clients "
        f"have rolled out {max(1, batch.needed - batch.ready)} more"
    )


def _waiting(view: ServerView) -> str:
    longest: dict[tuple[str, str], OpenView] = {}
    for episode in sorted(view.open, key=lambda episode: -episode.idle):
        longest.setdefault((episode.task_id, episode.client_id), episode)
    shown = list(longest.values())[:_SHOWN]
    listed = ", ".join(
        f"task {e.task_id!r} (episode {e.episode_id} of client {e.client_id}: no model call for "
        f"{e.idle:.0f} s, {_alive(e)})"
        for e in shown
    )
    left = len(view.open) - len(shown)
    more = f" and {left} more" if left else ""
    claims = f"; {view.waiting_claims} claims wait for a slot" if view.waiting_claims else ""
    return f"waiting for {listed}{more}{claims}. {_way_out(view.open)}"


def _alive(episode: OpenView) -> str:
    if episode.beats:
        return f"the last heartbeat {episode.seen_ago:.0f} s ago"
    return f"no heartbeat since, its lease ends in {episode.lease_left:.0f} s"


def _way_out(silent: Sequence[OpenView]) -> str:
    beating = sum(episode.beats for episode in silent)
    if beating == len(silent):
        return (
            "The client runs, but its agent has stalled in something other than the model: check "
            "what it does after its last message, and give its runner an episode_timeout"
        )
    gone = "the client may be gone; each episode is aborted when its lease ends, and its task free"
    if not beating:
        return gone[0].upper() + gone[1:]
    return f"Where heartbeats arrive, the agent has stalled; otherwise {gone}"


def _late(late: Sequence[OpenView], view: ServerView) -> str:
    oldest = sorted(late, key=lambda episode: -episode.steps_ago)
    listed = ", ".join(
        f"task {e.task_id!r} of client {e.client_id} (episode {e.episode_id}, begun {e.steps_ago} "
        "steps ago)"
        for e in oldest[:_SHOWN]
    )
    more = f" and {len(oldest) - _SHOWN} more" if len(oldest) > _SHOWN else ""
    left = max(0.0, view.late_seconds - view.late_waited)
    return (
        f"the batch is complete and waits for {listed}{more}, which would be too old for the "
        f"next batch; episodes still open in {left:.0f} s are aborted (setting "
        "rollout.late_seconds)"
    )


def _incomplete(view: ServerView) -> str:
    size = view.episodes_per_task
    listed = ", ".join(
        f"{name!r} has {ended} of {size}" for name, ended, _ in view.lacking[:_SHOWN]
    )
    more = f" and {len(view.lacking) - _SHOWN} more" if len(view.lacking) > _SHOWN else ""
    lacking = (
        f"waiting for episodes of tasks that no client is working on: {listed}{more}"
        if listed
        else ""
    )
    ready = f"{view.batch.ready} of {view.batch.needed} complete" if view.batch is not None else ""
    if view.waiting_claims:
        asked = (
            f"all {view.waiting_claims} waiting claims are for tasks that are complete in this "
            "batch"
        )
        if short := [
            f"{tag!r} ({p.ready} of {p.slots})" for tag, p in view.tags.items() if p.ready < p.slots
        ]:
            asked += (
                f", or for tags whose slots in it are filled; it still needs {', '.join(short)}"
            )
        return "; ".join(filter(None, [asked, lacking, ready]))
    return f"{lacking} ({ready}); start a client for these or for other tasks"


def _in_doubt(parts: Sequence[DoubtView]) -> str:
    longest = sorted(parts, key=lambda part: -part.waited)
    listed = "; ".join(
        f"episode {p.episode_id} for {p.waited:.0f} s, arbiter {p.arbiter!r}: {p.why}"
        for p in longest[:_SHOWN]
    )
    more = f"; and {len(longest) - _SHOWN} more" if len(longest) > _SHOWN else ""
    return f"{len(longest)} prepared parts of joint episodes wait for their arbiter: {listed}{more}"


def _quarantined(view: ServerView) -> str:
    listed = "; ".join(
        f"{entry.task_id!r} after {entry.aborts} failures, last reason: {entry.reason}"
        if entry.task_id
        else (
            f"all tasks of client {entry.client_id}, whose episodes could not be trained: "
            f"{entry.reason}"
        )
        for entry in view.quarantined[:_SHOWN]
    )
    more = f"; and {len(view.quarantined) - _SHOWN} more" if len(view.quarantined) > _SHOWN else ""
    return f"quarantined tasks: {listed}{more} (they are tried again when the run is resumed)"


@dataclass(slots=True)
class Watchdog:
    """Reports each stuck cause when it begins and when it ends.

    :param begun: is called with each that begins.
    """

    events: EventLog
    begun: Callable[[Finding], None] = lambda _: None
    _told: dict[str, Finding] = field(default_factory=dict)

    def look(self, findings: Sequence[Finding]) -> None:
        """Report the causes that are stuck now and were not before, and vice versa."""
        stuck = {finding.code: finding for finding in findings if finding.stuck}
        for code, finding in stuck.items():
            if code not in self._told:
                _log.warning("stuck for %.0f s: %s", finding.seconds, finding.message)
                self.events.emit("finding", {"what": "begun", **finding.model_dump()})
                self.begun(finding)
        for code, finding in self._told.items():
            if code not in stuck:
                self.events.emit("finding", {"what": "ended", **finding.model_dump()})
        self._told = stuck
