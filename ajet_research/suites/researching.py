"""Suites ``budgets`` and ``outage``: what researchers spend, and endpoints that are away."""

from __future__ import annotations

import json
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from ajet_core.errors import AjetError
from ajet_research.arenas import TrialBlueprint
from ajet_research.leader import REPORT, StudyLeader, registered_event
from ajet_research.ledger import StudyLedger
from ajet_research.registration import register
from ajet_research.researchers import (
    ModelResearcher,
    ModelTerms,
    Request,
    ResearcherAnswer,
    interpret_study,
    propose_study,
)
from ajet_research.researchers.checking import check_here
from ajet_research.runners import InlineRunner, Settled, TrialRunner
from ajet_research.spending import ResearcherLimits
from ajet_research.study import ResearcherPrice
from ajet_research.suites.endpoint import PRICE, EndpointReply, RecordingEndpoint, Script
from ajet_research.suites.mutations import finished_study
from ajet_research.suites.outside import run_real
from ajet_research.suites.planted import planted_study
from ajet_research.verifying import verify_study

_MAX_TOKENS = 512
_TIMEOUT = 0.5
_STUDIES = 40
_AGAIN = 4
"""Calls of the same command, each of which continues with what is left."""
GOOD_PROSE = (
    "{{finding b-vs-a}} is the comparison of this study, and its difference was "
    "{{number b-vs-a.gain}}."
)
Purpose = Literal["proposal", "interpretation"]


@dataclass
class VirtualClock:
    """A clock that only waiting moves, so that hours take no time."""

    seconds: float = 0.0

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        """Return the seconds that were waited."""
        return self.seconds

    def pause(self, seconds: float) -> None:
        """Move the clock."""
        self.seconds += seconds


class KilledResearcherError(Exception):
    """Stands for the death of the process after a request was sent."""


class _DyingResearcher(ModelResearcher):
    """Its process is killed while it waits for an answer that is charged."""

    def answer(self, request: Request) -> ResearcherAnswer:
        super().answer(request)
        raise KilledResearcherError


def scripted_model(
    base_url: str, kind: type[ModelResearcher] = ModelResearcher, timeout: float = _TIMEOUT
) -> ModelResearcher:
    """Return a researcher that asks a scripted endpoint."""
    price = ResearcherPrice(input=PRICE[0], output=PRICE[1])
    terms = ModelTerms(
        base_url=base_url,
        model="scripted",
        api_key_env="",
        max_tokens=_MAX_TOKENS,
        timeout_seconds=timeout,
        price=price,
    )
    return kind(terms)


@dataclass(slots=True)
class _Case:
    """A researcher that is asked until its budget or its tries end.

    :param name: of what the endpoint does.
    """

    name: str
    purpose: Purpose
    script: Script
    limits: ResearcherLimits
    kind: type[ModelResearcher] = ModelResearcher
    problems: list[str] = field(default_factory=list)


def run_budgets(*, seed: int, size: int = 1) -> dict[str, Any]:
    """Ask endpoints that refuse to please, and run studies whose machine fails.

    What is spent is counted from outside: by the endpoint, by what runs the trials, and for three
    studies with real processes by the size of their directory and in ``/proc``.

    :param size: how often each case is tried, with other limits.
    """
    began = time.monotonic()
    cases = [case for index in range(size) for case in _cases(seed + index)]
    over_tokens, over_money, requests = 0, 0.0, 0
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        original = finished_study(Path(folder) / "original" / "study", world="null", repeats=0)
        for index, case in enumerate(cases):
            place = Path(folder) / str(index)
            with RecordingEndpoint(case.script) as endpoint:
                problems += _spend(case, place, original, endpoint.base_url)
                if case.limits.tokens is not None:
                    over_tokens = max(over_tokens, endpoint.tokens - case.limits.tokens)
                if case.limits.money is not None:
                    over_money = max(over_money, endpoint.money - case.limits.money)
                requests += len(endpoint.requests)
    beyond = [_trials_beyond(seed * 1000 + index) for index in range(_STUDIES * size)]
    trials, compute, wall, ended = (list(column) for column in zip(*beyond, strict=True))
    real = run_real()
    problems += real["problems"]
    overrun = {
        "tokens": over_tokens,
        "money": round(over_money, 9),
        "trials": max(0, *trials),
        "compute_seconds": round(max(0.0, *compute), 6),
        "wall_seconds": round(max(0.0, *wall), 6),
        **{f"real_{resource}": amount for resource, amount in real["overruns"].items()},
    }
    return {
        "suite": "budgets",
        "cases": len(cases),
        "requests": requests,
        "studies": len(beyond),
        "exhausted": sum(map(bool, ended)),
        "exhausted_wall": ended.count("wall_hours"),
        "overrun": max(overrun.values()),
        "overruns": overrun,
        "real": real.get("studies", real.get("skipped")),
        "problems": problems,
        "seconds": round(time.monotonic() - began, 1),
        "passed": not any(overrun.values()) and not problems and requests > len(cases),
    }


class _FailingRunner(TrialRunner):
    """Every attempt takes all of its time, and every second one is lost with its machine.

    :ivar ends: when each attempt ends that was started, by trial and number.
    """

    def __init__(self, rng: random.Random, clock: VirtualClock) -> None:
        self.ends: dict[tuple[str, int], float] = {}
        self.seconds = 0.0
        self._inner = InlineRunner()
        self._rng = rng
        self._clock = clock

    def poll(self, blueprint: TrialBlueprint, attempt: int) -> Settled | None:
        """Begin an attempt, or say how it ended once its time is over."""
        now = self._clock.monotonic()
        if now < self.ends.setdefault((blueprint.id, attempt), now + blueprint.seconds):
            return None
        self.seconds += blueprint.seconds
        if self._rng.random() < 0.5:
            return Settled(blueprint.seconds, cause="the worker was lost")
        return replace(self._inner.poll(blueprint, attempt), seconds=blueprint.seconds)


def _trials_beyond(seed: int) -> tuple[int, float, float, str]:
    """Return the trials, the seconds of attempts and the time that a study took beyond its budget.

    The fourth value is the limit that ended it, "" if none did.
    """
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    study = planted_study(f"null:{seed}", looks=((6, 0.05),))
    seconds = float(len(study.arms) * len(study.seeds))
    # Of attempts that are not lost, if one runs at a time, or a part of them.
    wall = seconds * rng.choice([4.0, 1.0, 0.4, 0.15])
    limits = {
        "trials": 12,
        "trial_seconds": 1.0,
        "compute_hours": seconds / 3600,
        "wall_hours": wall / 3600,
    }
    study = study.model_copy(update={"budget": study.budget.model_copy(update=limits)})
    clock = VirtualClock()
    ledger, runner = StudyLedger(None), _FailingRunner(rng, clock)
    with closing(ledger):
        event = registered_event(register(study, Path()))
        ledger.append(event, time="2026-01-01T00:00:00+00:00", elapsed=0.0)
        parallel = rng.choice([1, 3, 50])
        state = StudyLeader(ledger, runner, None, clock, parallel).lead()
    return (
        len({trial for trial, _ in runner.ends}) - study.budget.trials,
        runner.seconds - seconds,
        max(runner.ends.values()) - wall,
        state.exhausted.resource if state.exhausted and state.decided else "",
    )


def _cases(seed: int) -> Iterator[_Case]:
    refused = '{"study": {}, "prose": ""}'
    scripts: dict[str, tuple[Script, type[ModelResearcher]]] = {
        "honest": (lambda _: EndpointReply(refused), ModelResearcher),
        "without usage": (lambda _: EndpointReply(refused, usage=False), ModelResearcher),
        "charged and lost": (lambda _: EndpointReply(cut=True), ModelResearcher),
        "charged and failed": (lambda _: EndpointReply(status=502), ModelResearcher),
        "charged and silent": (
            lambda request: EndpointReply(refused, hangs=request["number"] % 2 == 1),
            ModelResearcher,
        ),
        "killed": (lambda _: EndpointReply(refused), _DyingResearcher),
    }
    # Two to four requests fit.
    tokens: dict[Purpose, int] = {
        "proposal": 60_000 + 1_700 * seed,
        "interpretation": 20_000 + 700 * seed,
    }
    for name, (script, kind) in scripts.items():
        for purpose, most in tokens.items():
            limits = ResearcherLimits(tokens=most)
            yield _Case(f"{name}, tokens", purpose, script, limits, kind)
            money = ResearcherLimits(money=most * 1.1 / 1e6)
            yield _Case(f"{name}, money", purpose, script, money, kind)


def _spend(case: _Case, place: Path, original: Path, url: str) -> list[str]:
    """Ask until nothing more may be asked, and return what is wrong with the study then."""
    researcher, clock = scripted_model(url, case.kind), VirtualClock()
    if case.purpose == "proposal":
        place.mkdir()
        topic = place / "topic.md"
        topic.write_text("Is method b better than a?", encoding="utf-8")
        for _ in range(_AGAIN):
            with suppress(AjetError, KilledResearcherError):
                propose_study(
                    topic,
                    place / "study.toml",
                    researcher,
                    limits=case.limits,
                    clock=clock,
                    check=check_here,
                )
        return []
    study = place / "study"
    shutil.copytree(original, study)
    for _ in range(_AGAIN):
        with suppress(KilledResearcherError):
            interpret_study(study, researcher, limits=case.limits, clock=clock)
    return [f"{case.name}: {problem}" for problem in verify_study(study).problems]


def run_outage(*, seed: int, size: int = 1) -> dict[str, Any]:
    """Interpret a study while its endpoint is away, for minutes or for ever.

    :param size: how often each case is tried.
    """
    began = time.monotonic()
    rng_minutes = [3 + seed % 5, 20]
    results: dict[str, str] = {}
    problems, hours = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        original = finished_study(Path(folder) / "original" / "study", world="null", repeats=0)
        for index in range(size):
            for name, script, expected in _outages(rng_minutes):
                study = Path(folder) / f"{index}-{name}" / "study"
                shutil.copytree(original, study)
                clock = VirtualClock()
                problem = _interpret_in_outage(study, script, clock)
                hours += clock.seconds / 3600
                prose = GOOD_PROSE.split(" is ", 1)[1].split(" {{", maxsplit=1)[0] in _text(study)
                results[name] = "with prose" if prose else "without prose"
                if prose != expected or prose == bool(problem):
                    problems.append(f"{name}: {results[name]}: {problem}")
                problems += [f"{name}: {one}" for one in verify_study(study).problems]
                if "## Answer" not in _text(study):
                    problems.append(f"{name}: the report is not complete")
    return {
        "suite": "outage",
        "cases": len(results) * size,
        "reports": len(results) * size - len([one for one in problems if "complete" in one]),
        "results": results,
        "hours_waited": round(hours, 2),
        "problems": problems,
        "seconds": round(time.monotonic() - began, 1),
        "passed": not problems,
    }


OutageScript = Callable[[VirtualClock], Script] | None


def _outages(minutes: list[int]) -> Iterator[tuple[str, OutageScript, bool]]:
    """Yield what an endpoint does, and whether there is prose in the end."""
    good = EndpointReply(json.dumps({"prose": GOOD_PROSE}))

    def away(status: int, seconds: float) -> Callable[[VirtualClock], Script]:
        def script(clock: VirtualClock) -> Script:
            gone = EndpointReply(status=status, charged=False)
            return lambda _: gone if clock.seconds < seconds else good

        return script

    yield "refused", None, False
    yield "busy for minutes", away(429, minutes[0] * 60), True
    yield "busy for long", away(503, minutes[1] * 60), True
    yield "busy for ever", away(429, float("inf")), False
    yield "failing for ever", away(500, float("inf")), False
    yield "forbidden", away(401, float("inf")), False
    yield "hanging", lambda _: lambda _: EndpointReply(hangs=True, charged=False), False
    yield "cut", lambda _: lambda _: EndpointReply(cut=True), False
    yield "no completion", lambda _: lambda _: EndpointReply(raw=b"<html>gateway</html>"), False


def _interpret_in_outage(study: Path, script: OutageScript, clock: VirtualClock) -> str:
    """Return why there is no prose."""
    limits = ResearcherLimits(tokens=60_000)
    if script is None:
        with closing(socket.socket()) as taken:
            # Nothing listens on a port that is bound.
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
            written = interpret_study(
                study, scripted_model(url), limits=limits, wait_seconds=3600, clock=clock
            )
            return written.problem
    with RecordingEndpoint(script(clock)) as endpoint:
        researcher = scripted_model(endpoint.base_url)
        written = interpret_study(study, researcher, limits=limits, wait_seconds=3600, clock=clock)
        return written.problem


def _text(study: Path) -> str:
    return (study / REPORT / "report.md").read_text(encoding="utf-8")
