"""What a trial measured, read from the store of its server: nothing else counts.

The store is read as the file that it is, without the server's code, and without changing a byte.
"""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet_core.errors import ConfigError

SERVER = "server"
STORE_FILE = "samples.sqlite3"
HELD_OUT = "held-out"
CODE_FAILED = "code-failed.txt"
_EPISODES = (
    "SELECT episodes.id, kind, tag, task_id, claim_version, reward, components, batches.step "
    "FROM episodes LEFT JOIN batches ON batches.batch_id = episodes.batch_id "
    "AND batches.refused = '' WHERE state = 'ended' ORDER BY episodes.id"
)
_REFUSED = "SELECT refused FROM batches WHERE step = ? AND refused != '' ORDER BY id DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class EndedEpisode:
    """An episode with a reward.

    :param version: steps of the weights with which it was claimed.
    :param step: that trained on it; None if none did.
    """

    kind: str
    tag: str
    task: str
    version: int
    reward: float
    components: dict[str, float]
    step: int | None


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of a run.

    :param config: of the run.
    :param paused: why the run paused; "" if it did not.
    :param step: the last step that ended.
    :param refused: why the last batch for the next step was not trained; "" if none was refused.
    :param episodes: in the order of their claims.
    """

    config: dict[str, Any]
    paused: str
    step: int
    refused: str
    episodes: list[EndedEpisode]

    def held_out(self, step: int) -> dict[str, float]:
        """Return the success by held-out task, of its first episode with the weights of a step."""
        scores: dict[str, float] = {}
        for one in self.episodes:
            if one.kind == "eval" and one.tag == HELD_OUT and one.version == step:
                scores.setdefault(one.task, one.reward)
        return scores


def read_run(directory: Path) -> RunRecords:
    """Read the store of a trial whose server has ended.

    :raises ConfigError: there is none, it is damaged, or its server did not close it.
    """
    path = directory / SERVER / STORE_FILE
    log = path.with_name(f"{path.name}-wal")
    if not path.exists():
        raise ConfigError(f"There is no run in {directory}: {path} is missing.")
    if log.exists() and log.stat().st_size:
        raise ConfigError(f"The server of {directory} has not closed {path}.")
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        ) as store:
            runs = store.execute("SELECT config_json, paused FROM run").fetchall()
            (step,) = store.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()
            refused = store.execute(_REFUSED, (int(step) + 1,)).fetchone()
            rows = store.execute(_EPISODES).fetchall()
    except sqlite3.Error as error:
        raise ConfigError(f"The store {path} cannot be read: {error}") from error
    if len(runs) != 1:
        raise ConfigError(f"The store {path} has {len(runs)} runs.")
    ((config, paused),) = runs
    return RunRecords(
        config=json.loads(config),
        paused=str(paused),
        step=int(step),
        refused=str(refused[0]) if refused else "",
        episodes=[_episode(row) for row in rows],
    )


def code_failure(directory: Path) -> str:
    """Return why the code of the arm made its trial fail; "" if it did not."""
    path = directory / CODE_FAILED
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _episode(row: tuple[Any, ...]) -> EndedEpisode:
    number, kind, tag, task, version, reward, components, step = row
    numbers = {name: float(value) for name, value in json.loads(components).items()}
    if not all(map(math.isfinite, [reward, *numbers.values()])):
        raise ConfigError(f"Episode {number} has a reward that is not finite.")
    return EndedEpisode(kind, tag, task, version, float(reward), numbers, step)
