"""A dataset reader and a judge of a third party: their hooks, and the components."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentjet import EpisodeOutcome
from ajet_core.errors import UnreadableFileError
from ajet_core.interfaces import ComponentSettings, DatasetReader, Judge
from ajet_core.plugin import JudgeSpec, ReaderSpec, hookimpl


@hookimpl
def ajet_register_readers() -> Sequence[ReaderSpec]:
    return (
        ReaderSpec(
            name="records",
            target="tests.agents.outside:RecordReader",
            settings="tests.agents.outside:RecordSettings",
        ),
    )


@hookimpl
def ajet_register_judges() -> Sequence[JudgeSpec]:
    return (
        JudgeSpec(
            name="share",
            target="tests.agents.outside:ShareJudge",
            settings="tests.agents.outside:ShareSettings",
        ),
    )


class RecordSettings(ComponentSettings):
    separator: str = "\x1f"


class RecordReader(DatasetReader[RecordSettings]):
    """Records with an id, a question and an answer, each with its length."""

    def read(self, source: str) -> Iterator[dict[str, str]]:
        try:
            lines = Path(source).read_bytes().decode().split("\x1e")
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableFileError(f"cannot read {source}: {error}") from error
        for line in lines[:-1]:
            yield dict(
                zip(("id", "question", "answer"), line.split(self.settings.separator), strict=True)
            )


class ShareSettings(ComponentSettings):
    words: tuple[str, ...] = ("door", "left")


class ShareJudge(Judge[ShareSettings]):
    """The share of words that a result has; awaits, as judges that call a model do."""

    async def __call__(self, task: Any, result: Any) -> EpisodeOutcome:
        await asyncio.sleep(0)
        words = self.settings.words
        share = sum(word in str(result).split() for word in words) / len(words)
        return EpisodeOutcome(reward=share, components={"words": float(len(words))})
