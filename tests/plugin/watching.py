"""Observers that count, log and send to a thread, as a small plugin would."""

from __future__ import annotations

import logging
import queue
from collections import Counter

from ajet_core.interfaces import EpisodeRecord
from ajet_core.plugin import hookimpl
from ajet_core.protocol import ServerState, StepSummary

log = logging.getLogger("watching")
ends: Counter[str] = Counter()
waiting: queue.Queue[StepSummary] = queue.Queue(maxsize=100)


@hookimpl
def ajet_state_changed(state: ServerState) -> None:
    """Warn that the run is paused."""
    see_state(state)


@hookimpl
def ajet_episode_finished(episode: EpisodeRecord) -> None:
    """Count why episodes end."""
    see_episode(episode)


@hookimpl
def ajet_step_finished(summary: StepSummary) -> None:
    """Log the mean reward, and have the step sent."""
    see_step(summary)


def see_state(state: ServerState) -> None:
    if state == ServerState.PAUSED:
        log.warning("the run is paused")


def see_episode(episode: EpisodeRecord) -> None:
    ends[episode.cause or "ended"] += 1
    if episode.cause:
        log.info("%s of %s: %s", episode.episode_id, episode.task_id, episode.reason)


def see_step(summary: StepSummary) -> None:
    log.info("step %d: mean reward %.3f", summary.step, summary.metrics["reward_mean"])
    if waiting.full():
        waiting.get_nowait()
    waiting.put_nowait(summary)
