"""Compares two versions: a study for each measure, whose verdict says whether it has regressed.

A study has one factor, the installed version. Trials of the two arms alternate, seed by seed, in
the order that is drawn from the study. The error rate of a comparison is divided among its
measures, so that the probability of any false verdict is at most `ALPHA`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ajet_core.errors import ConfigError
from ajet_core.files import read_json, write_whole
from ajet_research.arenas import Arena
from ajet_research.events import AnyEvent, LookFinding
from ajet_research.inference import MOST_SEEDS, least_seeds
from ajet_research.leader import TRIALS, run_study
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.runners import LocalRunner, TrialRunner
from ajet_research.state import StudyState, fold
from ajet_research.study import Study, arm_name, canonical
from ajet_research.versions.arena import RAW
from ajet_research.versions.history import VersionRow, VersionStatus
from ajet_research.versions.measures import MEASURES
from ajet_research.worker import STORE

ALPHA = 0.05
_MORE = 2
"""Seeds beyond the least: a single outlier then leaves a verdict possible."""
_ID = "candidate-vs-baseline"
_ATTEMPTS = 2


def default_seeds(measures: int) -> int:
    """Return how many seeds a comparison of so many measures has unless others are chosen."""
    return least_seeds(ALPHA / measures) + _MORE


def version_study(
    measure: str,
    baseline: str,
    candidate: str,
    *,
    seeds: int,
    alpha: float = ALPHA,
    first_seed: int = 1,
) -> Study:
    """Return the study of one measure.

    :param alpha: its error rate.
    :raises ConfigError: there is no such measure, or so few seeds can never show anything.
    """
    if measure not in MEASURES:
        raise ConfigError(f"Unknown measure {measure!r}; known: {', '.join(MEASURES)}.")
    if not (least := least_seeds(alpha)) <= seeds <= MOST_SEEDS:
        raise ConfigError(
            f"{seeds} seeds do not do: with an error rate of {alpha:.2g} for {measure}, a "
            f"comparison needs {least} to {MOST_SEEDS}."
        )
    spec = MEASURES[measure]

    def branch(verdict: str, conclude: str) -> dict[str, object]:
        return {"when": {_ID: verdict}, "conclude": conclude}

    return Study.model_validate(
        {
            "schema": 1,
            "topic": {"question": f"Has the candidate regressed in the {spec.summary}?"},
            "base": {"arena": "versions", "set": {"measure": measure}},
            "factors": {"version": {"path": "version", "levels": [baseline, candidate]}},
            "outcome": {
                "metric": spec.metric,
                "smallest": spec.smallest,
                "failed": "worst" if spec.relative else 1.0,
            },
            "inference": {
                "alpha": alpha,
                "looks": [{"seeds": seeds, "alpha": alpha}],
                "first_seed": first_seed,
                "repeats": 0,
            },
            "compare": [
                {"id": _ID, "arm": {"version": candidate}, "against": {"version": baseline}}
            ],
            "decide": [
                branch(
                    "worse", "The candidate has regressed: it is worse by more than the margin."
                ),
                branch("better", "The candidate is better by more than the margin."),
                branch("equivalent", "The candidate is equivalent within the margin."),
                {"otherwise": True, "conclude": "Whether the candidate has regressed is open."},
            ],
            "budget": {
                "trials": 2 * seeds,
                "trial_seconds": spec.seconds,
                "compute_hours": 2 * seeds * _ATTEMPTS * spec.seconds / 3600,
                "attempts": _ATTEMPTS,
            },
        }
    )


def compare_versions(
    baseline: str,
    candidate: str,
    directory: Path,
    *,
    measures: Sequence[str],
    seeds: int | None = None,
    alpha: float = ALPHA,
    first_seed: int = 1,
    commits: tuple[str, str] = ("", ""),
    on_event: Callable[[AnyEvent], None] | None = None,
    runner: Callable[[Path, Arena], TrialRunner] = LocalRunner,
) -> list[VersionRow]:
    """Run the study of each measure, or continue it, and return a row for each.

    :param directory: of the studies; each has one of its own, named after its measure.
    :param seeds: of each arm; by default `default_seeds`.
    :param alpha: error rate of the whole comparison.
    :param commits: of the baseline and of the candidate, for the rows.
    :param runner: makes what runs the trials.
    :raises ConfigError: a study is refused, or another one is in its directory.
    """
    rows = []
    for measure in measures:
        study = version_study(
            measure,
            baseline,
            candidate,
            seeds=default_seeds(len(measures)) if seeds is None else seeds,
            alpha=alpha / len(measures),
            first_seed=first_seed,
        )
        where = directory / f"{measure}.study"
        where.mkdir(parents=True, exist_ok=True)
        source = where / "study.json"
        content = canonical(study.model_dump(mode="json", by_alias=True)).encode()
        if not source.exists():
            write_whole(source, content, mode=0o644)
        elif source.read_bytes() != content:
            raise ConfigError(
                f"{source} is another study: other versions, measures or seeds. Choose another "
                "directory with --dir."
            )
        run_study(source, where, on_event=on_event, runner=runner)
        rows.append(version_row(where, commits=commits))
    return rows


def version_row(directory: Path, *, commits: tuple[str, str] = ("", "")) -> VersionRow:
    """Return what a finished study of two versions says, as a row of the history.

    :raises ConfigError: it is not a finished study of versions.
    """
    path = directory / LEDGER
    rows = list(read_ledger(path)) if path.exists() else []
    state = fold(rows)
    if state.study is None or state.study.base.arena != "versions" or state.reported is None:
        raise ConfigError(f"{directory} does not have a finished study of versions.")
    (one,) = state.study.compare
    baseline, candidate = (str(side["version"]) for side in (one.against, one.arm))
    measure = str(state.study.base.set["measure"])
    spec, finding = MEASURES[measure], state.verdicts.get(_ID)
    machine, names = _about(directory)
    gain = None if finding is None else finding.gain
    low, high = (None, None) if finding is None else (finding.low, finding.high)

    def worse_by(value: float | None) -> float | None:
        """Turn a gain into a ratio of costs, or into a difference."""
        if value is None:
            return None
        return math.exp(-value) if spec.relative else -value

    return VersionRow(
        date=datetime.fromisoformat(rows[-1].time).astimezone(UTC).date().isoformat(),
        measure=measure,
        unit=spec.unit,
        margin=spec.margin,
        relative=spec.relative,
        baseline=baseline,
        candidate=candidate,
        agentjet=(names.get(baseline, ""), names.get(candidate, "")),
        commits=commits,
        machine=machine,
        seeds=[] if finding is None else finding.seeds,
        values=(
            _values(state, arm_name(one.against), finding),
            _values(state, arm_name(one.arm), finding),
        ),
        ratio=worse_by(gain),
        low=worse_by(high),
        high=worse_by(low),
        alpha=state.study.alpha_of(0),
        verdict="undecided" if finding is None else finding.verdict,
        status=_status(finding, state.study.outcome.smallest),
        failed=sum(bool(t.outcome and t.outcome.failed) for t in state.trials.values()),
        ledger=rows[-1].hash,
    )


def _status(finding: LookFinding | None, smallest: float) -> VersionStatus:
    """Return what a finding says about a regression.

    A version is not worse if the whole interval lies above minus the margin. Its upper end does not
    matter, so that this can be shown of some comparisons whose verdict is undecided.
    """
    if finding is None:
        return "undecided"
    match finding.verdict:
        case "worse":
            return "regressed"
        case "invalid":
            return "invalid"
        case "undecided" if finding.reason or finding.low is None or finding.low <= -smallest:
            return "undecided"
        case _:
            return "not worse"


def _values(state: StudyState, arm: str, finding: LookFinding | None) -> list[float | None]:
    """Return what each seed measured; None where the version failed."""
    measured = {
        trial.blueprint.seed: trial.outcome.metrics.get("value")
        for trial in state.trials.values()
        if trial.arm == arm and trial.outcome is not None
    }
    return [] if finding is None else [measured.get(seed) for seed in finding.seeds]


def _about(directory: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the machine of the trials, and the version of agentjet that each version reports.

    If there are several machines, the fingerprint is "several machines".
    """
    stores = (directory / TRIALS).glob(f"*/{STORE}/{RAW}")
    raws = [read_json(path) for path in stores]
    machines = {canonical(raw["machine"]): raw["machine"] for raw in raws}
    if len(machines) == 1:
        (machine,) = machines.values()
    else:
        machine = {"fingerprint": "several machines" if machines else "none"}
    return machine, {raw["settings"]["version"]: raw["agentjet"] for raw in raws}
