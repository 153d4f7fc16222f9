"""The state of a run in a sentence, and its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from ajet_core.protocol import ServerState, ServerStatus
from ajet_server.episodes.open_episodes import OpenEpisode
from ajet_server.page.models import ClientActivity

_POLL_SECONDS = 5.0
_MOST_PER_SECOND = 20.0
_WAITS_FOR = {"no_client": "a client", "waiting_for_episodes": "model calls of {}"}


class PollPace:
    """How often pages ask: every 5 seconds, or less often if that were over 20 requests a second.

    :param clock: seconds, monotonic.
    :ivar seconds: between two requests of a page.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._requests = 0
        self.seconds = _POLL_SECONDS

    def note(self) -> None:
        """Count a request."""
        self._requests += 1
        passed = self._clock() - self._since
        if passed >= 2 * self.seconds:
            pages = self._requests / passed * self.seconds
            self.seconds = max(_POLL_SECONDS, pages / _MOST_PER_SECOND)
            self._since, self._requests = self._clock(), 0


def sentence(status: ServerStatus, now: float) -> str:
    """Return the state of a server and its run as one sentence.

    :param now: Unix seconds.
    """
    if status.error is not None:
        return f"The run failed: {status.error.message}"
    if status.paused is not None:
        return (
            f"The run is paused{_paused_since(status, now)}: {_why_paused(status, status.paused)}"
        )
    run = f"Run {status.run_id}" if status.run_id else "The server"
    if status.state is ServerState.OFFLINE:
        ended = f" It was trained for {_steps(status.step)}." if status.step else ""
        return f"{run} is not active.{ended}"
    if status.state is ServerState.BOOTING:
        return f"{run} is starting its engine and trainer."
    return f"{run} {_activity(status, now)}."


def _since(at: float) -> str:
    return f" since {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def _paused_since(status: ServerStatus, now: float) -> str:
    return next((_since(now - f.seconds) for f in status.findings if f.code == "paused"), "")


def _why_paused(status: ServerStatus, reason: str) -> str:
    """Return the findings that paused a run by their names: their sentences are listed anyway."""
    for finding in status.findings:
        if finding.since_step is not None:
            reason = reason.replace(finding.message, finding.code.replace("_", " "))
    return reason


def _activity(status: ServerStatus, now: float) -> str:
    batch = status.batch
    if batch is None:
        return f"has been trained for {_steps(status.step)}"
    of = "episodes" if batch.full_by == "episodes" else "tasks"
    filled = f"{batch.ready} of {batch.needed} {of}"
    if (training := status.rollout and status.rollout.training_step) is not None:
        return f"is training step {training}; the next batch has {filled}"
    for finding in status.findings:
        if (what := _WAITS_FOR.get(finding.code)) is not None:
            whom = what.format(_count(batch.open_episodes, "open episode"))
            return (
                f"waits for {whom}{_since(now - finding.seconds)}; the batch of step "
                f"{status.step + 1} has {filled}"
            )
    return (
        f"is filling the batch of step {status.step + 1}: {filled} are ready and "
        f"{_count(batch.open_episodes, 'episode')} open"
    )


def clients(
    episodes: Iterable[OpenEpisode], names: Mapping[str, str], now: float
) -> list[ClientActivity]:
    """Return the clients with open episodes, those with the most first.

    :param names: names of tokens by id.
    :param now: Unix seconds.
    """
    claimed: dict[str, list[float]] = {}
    for episode in episodes:
        record = episode.record
        claimed.setdefault(record.client_id, []).append(record.created_at)
    activities = [
        ClientActivity(
            client=client,
            name=names.get(client, ""),
            open_episodes=len(times),
            oldest_seconds=max(0.0, now - min(times)),
        )
        for client, times in claimed.items()
    ]
    return sorted(activities, key=lambda each: -each.open_episodes)


def _steps(count: int) -> str:
    return _count(count, "step")


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
