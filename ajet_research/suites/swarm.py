"""Topics with real learning on swarm servers, whose right answers follow from what the arms are.

The first line of each study file in ``topics/`` says why its answer is right. ``expect`` is that
answer; a null has no effect, so that ``undecided`` is right for it too.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from ajet_core.files import write_whole
from ajet_research.analysis import final_verdicts
from ajet_research.leader import run_study
from ajet_research.study import Look, Study, canonical, parse_study
from ajet_research.verifying import verify_study

TOPICS = tuple(sorted(path.stem for path in (Path(__file__).parent / "topics").glob("*.toml")))
_CLAIMS = ("better", "worse")


def topic_study(
    name: str, *, seeds: int, first_seed: int = 1, train_steps: int | None = None
) -> Study:
    """Return the study of a topic, with one look after so many seeds.

    :param train_steps: of each trial; None means those of the topic's file.
    """
    path = Path(__file__).parent / "topics" / f"{name}.toml"
    study = parse_study(path.read_text(encoding="utf-8"), str(path))
    # Fewer seeds than six cannot reach the usual alpha.
    alpha = max(study.inference.alpha, 2.0 / 2.0**seeds)
    changes = {
        "alpha": alpha,
        "looks": [Look(seeds=seeds, alpha=alpha)],
        "first_seed": first_seed,
    }
    base = study.base
    if train_steps is not None:
        base = base.model_copy(update={"set": {**base.set, "train_steps": train_steps}})
    inference = study.inference.model_copy(update=changes)
    return study.model_copy(update={"base": base, "inference": inference})


def run_topic(
    name: str,
    directory: Path,
    *,
    seeds: int = 6,
    first_seed: int = 1,
    train_steps: int | None = None,
    parallel: int = 2,
) -> dict[str, Any]:
    """Run the study of a topic in a directory, or continue it there, and verify it."""
    study = topic_study(name, seeds=seeds, first_seed=first_seed, train_steps=train_steps)
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / "study.json"
    write_whole(source, canonical(study.model_dump(mode="json", by_alias=True)).encode())
    state = run_study(source, directory, parallel=parallel)
    ((id_, verdict),) = final_verdicts(state).items()
    (expected,) = (one.expect for one in study.compare)
    finding = state.verdicts.get(id_)
    right = verdict == expected or (expected not in _CLAIMS and verdict == "undecided")
    return {
        "verdict": verdict,
        "expected": expected,
        "right": right,
        "false": verdict in _CLAIMS and not right,
        "gain": None if finding is None else finding.gain,
        "attempts": sum(trial.attempts for trial in state.trials.values()),
        "problems": verify_study(directory).problems,
    }


def run_swarm(
    *, seed: int, size: int = len(TOPICS), directory: Path | None = None
) -> dict[str, Any]:
    """Run the first `size` topics.

    :param seed: six seeds of trials follow from it.
    :param directory: where the studies are kept, and continued; None keeps none.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        where = directory or Path(folder)
        topics = {
            name: run_topic(name, where / name, first_seed=1 + 6 * seed) for name in TOPICS[:size]
        }
    right = sum(one["right"] for one in topics.values())
    false = sum(one["false"] for one in topics.values())
    return {
        "suite": "swarm",
        "topics": topics,
        "right": right,
        "false": false,
        "seconds": round(time.monotonic() - began, 1),
        "passed": right == len(topics)
        and not false
        and not any(one["problems"] for one in topics.values()),
    }
