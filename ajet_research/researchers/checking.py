"""What a proposed study lacks: the checks of registration, and some more, in a process of its own.

A proposal may be of any size, and arenas resolve it in code that trusts its author. So the checks
have limits of time and memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ajet_core.errors import AjetError, ConfigError
from ajet_research.arenas import load_arena
from ajet_research.registration import register
from ajet_research.report import word_problems
from ajet_research.study import Study, parse_study

SOURCE = "study.toml"
_SECONDS = 60
_MEMORY = 2**31
_MAIN = "from ajet_research.researchers.checking import main; main()"
_MOST_PROBLEMS = 20

StudyCheck = Callable[[str, Path, Mapping[str, str]], list[str]]
"""Takes the text of a study, where its paths start, and the code of its arms, by path. Returns its
problems."""


def check_here(text: str, directory: Path, files: Mapping[str, str]) -> list[str]:
    """Return the problems of a proposed study; an empty list if it can be registered and run."""
    try:
        study = parse_study(text, SOURCE)
        if problems := list(_claims(study)):
            return problems
        registration = register(study, directory, files=files)
        arena = load_arena(study.base.arena)
        for id_, arm in registration.arms.items():
            if registration.blueprints[id_].seed == study.seeds.start:
                _check_machine(arena.check_machine, registration.blueprints[id_].settings, arm)
    except ConfigError as error:
        lines = [line.removeprefix("- ") for line in error.message.splitlines()]
        return [line for line in lines if line != "The study is refused:"][:_MOST_PROBLEMS]
    except Exception as error:  # noqa: BLE001 - a study that breaks the check does not pass it
        return [f"the study cannot be checked: {type(error).__name__}: {error}"[:500]]
    return []


def _check_machine(check: Callable[..., None], settings: object, arm: str) -> None:
    try:
        check(settings)
    except AjetError as error:
        raise ConfigError(f"The arm {arm} cannot run here: {error.message}") from error


def _claims(study: Study) -> Iterator[str]:
    """Yield claims in conclusions. The author of a study may compare where its verdicts do.

    A researcher may not: which arm its sentence favours cannot be checked.
    """
    for index, branch in enumerate(study.decide, 1):
        for problem in dict.fromkeys(word_problems(branch.conclude)):
            yield (
                f"The conclusion of decision {index}: {problem}. Write what to do, without a "
                "comparison: the report adds the verdicts itself."
            )


def check_apart(
    text: str, directory: Path, files: Mapping[str, str], *, seconds: float = _SECONDS
) -> list[str]:
    """Return the problems of a proposed study, checked within limits."""
    try:
        done = subprocess.run(  # noqa: S603 - this program
            [sys.executable, "-c", _MAIN],
            input=json.dumps({"text": text, "directory": str(directory), "files": dict(files)}),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        problems = json.loads(done.stdout)["problems"]
    except subprocess.TimeoutExpired:
        why = "it is too large, or this machine is busy: ask for less, or try again"
        return [f"checking the study took longer than {seconds:g} s: {why}"]
    except (OSError, ValueError, KeyError):
        return ["checking the study failed: it is too large"]
    return [str(one) for one in problems]


def main() -> None:
    """Check the study on standard input, and print its problems as JSON."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    asked = json.load(sys.stdin)
    problems = check_here(asked["text"], Path(asked["directory"]), asked["files"])
    sys.stdout.write(json.dumps({"problems": problems}))
