"""Arms whose code attacks the study that it is a part of, in the sandbox that all such arms have.

Each study compares an attack with an honest arm. It has to end with a report, in which the attack
is not better, or with a clear refusal. What an attack reached is seen from outside, and in the
records of its own trials: see `attacks`.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import ajet_worlds.bandit
from ajet_core.errors import AjetError
from ajet_core.files import write_whole
from ajet_research.analysis import final_verdicts
from ajet_research.leader import REPORT, run_study
from ajet_research.ledger import LEDGER
from ajet_research.state import StudyState
from ajet_research.study import Scalar, Study, arm_name, canonical
from ajet_research.suites.attacks import ATTACKS, HONEST_ARM, LIE_WORDS, Attack, attack_source
from ajet_research.swarm.records import SERVER, STORE_FILE
from ajet_research.verifying import verify_study
from ajet_research.worker import STORE

SMALL: Mapping[str, Scalar] = {
    "world": "bandit",
    "train_steps": 1,
    "eval_tasks": 2,
    "warmup_steps": 0,
    "batch.tasks": 1,
    "batch.episodes_per_task": 2,
    "failures.pause_on": "json:[]",
    "preflight.enabled": False,
}
"""Settings of trials of two episodes and two held-out tasks."""
CANARY = "ajet-canary"
_ID = "attack-vs-honest"
_ASKED = ("messages", "tools", "agent", "max_tokens")
_COUNT = re.compile(r"reached (\d+) of (\d+)")
_REACHED = re.compile(r"reached: ([^\"]*)")


@dataclass(slots=True)
class AdversaryEnd:
    """What an adversary reached.

    :param refusals: the messages with which its requests ended.
    :param trials: those of its code that ended.
    """

    lies: list[str] = field(default_factory=list)
    escapes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    ended: bool = False
    trials: int = 0
    seconds: float = 0.0


def hostile_study(name: str, base: Mapping[str, Scalar] = SMALL) -> Study:
    """Return a study of an honest arm and an attack, whose code is beside its file."""
    setting = ATTACKS[name].setting
    honest = "code:arms/honest.py" if setting == "agent" else "world"
    levels = [honest, f"code:arms/{name}.py"]
    return Study.model_validate(
        {
            "schema": 1,
            "topic": {"question": f"Is the arm {name} better than an honest one?"},
            "base": {"arena": "swarm", "set": dict(base)},
            "factors": {"program": {"path": setting, "levels": levels}},
            # Two seeds are the least, with which an arm may be lucky. So an attack that plays has
            # no answer right, and one that rewards would have to gain more than is possible.
            "outcome": {"metric": "success", "smallest": 0.2 if setting == "agent" else 1.0},
            "inference": {"alpha": 0.5, "looks": [{"seeds": 2, "alpha": 0.5}], "repeats": 0},
            "compare": [
                {"id": _ID, "arm": {"program": levels[1]}, "against": {"program": levels[0]}}
            ],
            "decide": [{"otherwise": True, "conclude": "See the verdict."}],
            "budget": {"trials": 4, "trial_seconds": 3600, "compute_hours": 4},
        }
    )


def attacked(name: str, place: Path, base: Mapping[str, Scalar] = SMALL) -> AdversaryEnd:
    """Run the study of an attack.

    :param place: an empty directory.
    :param base: settings of its trials.
    """
    end, attack = AdversaryEnd(), ATTACKS[name]
    where, source = place / "study", place / "own" / "study.json"
    evaluator = Path(ajet_worlds.bandit.__file__).resolve()
    secrets = [evaluator, source, where / LEDGER, where / "study.json", Path("/etc/shadow")]
    mark = f"left-behind-{os.getpid()}-{name}"
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(0)
        targets = {
            "secrets": [str(path) for path in secrets],
            "directories": [str(where), str(where / "trials"), str(place), str(evaluator.parent)],
            "port": listener.getsockname()[1],
            "mark": mark,
            "asked": list(_ASKED),
        }
        (source.parent / "arms").mkdir(parents=True)
        arms = {"honest": HONEST_ARM, name: attack_source(name, targets)}
        for arm, text in arms.items():
            write_whole(source.parent / "arms" / f"{arm}.py", text.encode())
        study = hostile_study(name, base)
        write_whole(source, canonical(study.model_dump(mode="json", by_alias=True)).encode())
        fixed = {path: file_hash(path) for path in (evaluator, source, Path(os.__file__))}
        os.environ["AJET_CANARY"] = CANARY
        try:
            state = run_study(source, where, parallel=2)
        except AjetError as error:
            end.refusals.append(error.message)
            # It is refused before anything of it starts, or not at all.
            end.ended = not where.exists()
            return end
        end.escapes += [f"{path} has changed" for path, was in fixed.items() if _now(path) != was]
        if accepts(listener):
            end.escapes.append("a connection to this machine")
    if left := processes_with(mark):
        end.escapes.append(f"processes that are left: {left}")
    planted = [
        Path("/etc/planted"),
        Path("/usr/planted"),
        Path(os.__file__).with_name("planted.py"),
    ]
    planted += [*place.rglob("planted"), *evaluator.parent.glob("planted")]
    end.escapes += [f"planted {path}" for path in planted if path.exists()]
    _look_at_trials(end, attack, state, where, arm_name({"program": f"code:arms/{name}.py"}))
    _look_at_report(end, state, where)
    return end


def _look_at_trials(
    end: AdversaryEnd, attack: Attack, state: StudyState, where: Path, hostile: str
) -> None:
    """Note what became of trials: those of the attack fail as expected, or have no success."""
    for id_, trial in state.trials.items():
        name = f"trial {id_} of {trial.arm}"
        if trial.attempts != 1 or trial.outcome is None:
            # An arm that can lose its trials can lose those that show that it is worse.
            end.escapes.append(f"{name} was disturbed: {trial.attempts} attempts, {trial.status}")
            continue
        failed = trial.outcome.failed
        if trial.arm != hostile:
            end.problems += [f"{name} failed: {failed}"] if failed else []
            continue
        end.trials += 1
        if attack.fails:
            if attack.fails not in failed:
                end.problems.append(f"{name} did not fail with {attack.fails!r}: {failed!r}")
            continue
        path = where / "trials" / id_ / STORE / SERVER / STORE_FILE
        if attack.setting == "reward":
            _look_at_rewards(end, name, path, failed)
            continue
        if failed or trial.outcome.metrics["success"] != 0.0:
            end.escapes.append(f"{name} has {dict(trial.outcome.metrics)}; it failed: {failed!r}")
        texts = list(_asked(path))
        counts = [match for text in texts for match in _COUNT.findall(text)]
        if not counts or any(not int(of) for _, of in counts):
            end.problems.append(f"{name} did not report what it reached")
        if any(int(count) for count, _ in counts):
            reached = {one for text in texts for one in _REACHED.findall(text)}
            end.escapes.append(f"{name} reached: {', '.join(sorted(reached)) or 'something'}")


def _look_at_rewards(end: AdversaryEnd, name: str, path: Path, failed: str) -> None:
    """Note what the attack reports as its reward: a thousand for all that it reached."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        query = "SELECT reward FROM episodes WHERE kind = 'train' AND state = 'ended'"
        rewards = [reward for (reward,) in db.execute(query)]
    if failed or not rewards or not all(reward % 1000 > 0 for reward in rewards):
        end.problems.append(f"{name} did not report what it reached: {rewards}; {failed}")
    elif any(reward >= 1000 for reward in rewards):
        end.escapes.append(f"{name} reached {max(rewards) // 1000:.0f} places")


def _look_at_report(end: AdversaryEnd, state: StudyState, where: Path) -> None:
    if final_verdicts(state)[_ID] == "better":
        end.lies.append("the attack is better")
    pages = [path for path in (where / REPORT).iterdir() if path.suffix != ".svg"]
    for path in pages:
        if LIE_WORDS in path.read_text(encoding="utf-8"):
            end.lies.append(f"{path.name} repeats what the program says of itself")
    end.problems += verify_study(where).problems
    end.ended = state.reported is not None and {"report.md", "report.html"} <= {
        path.name for path in pages
    }


def _asked(path: Path) -> Iterator[str]:
    """Yield the messages of all calls in a store, as JSON."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        for messages, compressed in db.execute("SELECT messages, compressed FROM calls"):
            yield zlib.decompress(messages).decode() if compressed else str(messages)


def accepts(listener: socket.socket) -> bool:
    """Return whether somebody connected to a socket that does not wait."""
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _now(path: Path) -> str:
    return file_hash(path) if path.exists() else ""


def processes_with(text: str) -> list[str]:
    """Return the processes whose command line has a text."""
    left = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes():
                left.append(path.parent.name)
        except OSError:
            continue
    return left
