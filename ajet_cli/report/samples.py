"""What the model wrote: single episodes with their messages, and the episodes of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import StatisticsError, correlation, fmean

from ajet_core.errors import AjetError
from ajet_core.interfaces import BatchRecord
from ajet_server.page.conversation import ConversationLimits, conversation
from ajet_server.page.episode_rows import episode_output, episode_row, shared_endings
from ajet_server.page.models import Conversation, Ending, EpisodeRow
from ajet_server.page.token_texts import TokenTexts
from ajet_server.store.store_reader import StoreReader

MESSAGE_CHARS = 1500
FIRST_MESSAGES, LAST_MESSAGES = 2, 4
_LIMITS = ConversationLimits(calls=12, chars=MESSAGE_CHARS, total_chars=16_000)
_MOST = 100


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """An episode with its messages.

    :param first: its first call, if that is not among the last ones; it says what the task is.
    :param last: None if the episode cannot be read.
    :param problem: why, "" if it can.
    """

    episode_id: str
    first: Conversation | None = None
    last: Conversation | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StepSample:
    """The first 100 episodes of a step's batch, and signs that rewards are gamed.

    :param rows: the highest reward first.
    :param problems: of episodes that cannot be read.
    """

    step: int
    rows: Sequence[EpisodeRow]
    endings: Sequence[Ending]
    problems: Sequence[str] = field(default_factory=list)

    @property
    def rewards(self) -> list[float]:
        """Rewards of the episodes that have one."""
        return [row.reward for row in self.rows if row.reward is not None]

    @property
    def lengths(self) -> list[tuple[int, float]]:
        """Sampled tokens and reward of the episodes that have both."""
        return [
            (row.output.tokens, row.reward)
            for row in self.rows
            if row.output is not None and row.reward is not None
        ]

    @property
    def correlation(self) -> float | None:
        """Of reward and length; None if one of them does not vary."""
        # Squares of large rewards would overflow; a correlation does not depend on the scale.
        largest = max(map(abs, self.rewards), default=0.0) or 1.0
        scaled = [(tokens, reward / largest) for tokens, reward in self.lengths]
        try:
            return correlation(*zip(*scaled, strict=True))
        except (StatisticsError, TypeError):
            return None

    @property
    def repeats(self) -> float | None:
        """Mean share of the sampled text that repeats itself."""
        values = [row.output.repeats for row in self.rows if row.output is not None]
        return fmean(values) if values else None

    @property
    def cut_off(self) -> float | None:
        """Share of calls that reached their limit of tokens."""
        outputs = [row.output for row in self.rows if row.output is not None]
        calls = sum(output.calls for output in outputs)
        return sum(output.cut_off for output in outputs) / calls if calls else None

    @property
    def same_ending(self) -> float | None:
        """Share of the episodes that have the most frequent ending."""
        return (
            (self.endings[0].episodes if self.endings else 0) / len(self.rows)
            if self.rows
            else None
        )


async def shown_episodes(reader: StoreReader, episode_ids: Sequence[str]) -> list[ShownEpisode]:
    """Read episodes with their messages, cut to what a report can hold."""
    shown = []
    for episode_id in episode_ids:
        try:
            stored = await reader.load(episode_id)
        except AjetError as error:
            shown.append(ShownEpisode(episode_id, problem=error.message))
            continue
        last = conversation(stored.record, stored.calls, _LIMITS)
        first = None
        if last.omitted:
            first = conversation(stored.record, stored.calls[:1], _LIMITS)
            last = last.model_copy(update={"omitted": last.omitted - 1})
        shown.append(ShownEpisode(episode_id, first, last))
    return shown


async def step_sample(
    reader: StoreReader, batches: Sequence[BatchRecord], texts: TokenTexts
) -> StepSample:
    """Read episodes of the batches of one step, one episode at a time."""
    ids = [episode_id for batch in batches for episode_id in batch.episode_ids][:_MOST]
    rows: list[EpisodeRow] = []
    problems: list[str] = []
    for episode_id in ids:
        try:
            record = await reader.get_episode(episode_id)
            calls = (await reader.calls([episode_id]))[episode_id]
        except AjetError as error:
            problems.append(f"Episode {episode_id}: {error.message}")
            continue
        if record is not None:
            rows.append(episode_row(record, episode_output(calls, texts)))
    endings = shared_endings(rows)
    rows.sort(key=lambda row: (row.reward is None, -(row.reward or 0.0)))
    return StepSample(batches[0].step, rows, endings, problems)
