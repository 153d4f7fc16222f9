"""Performance by version: sources, environments, studies, and the history."""

from __future__ import annotations

import json
import math
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ajet_cli.main import cli
from ajet_core.errors import ConfigError
from ajet_research.arenas import TrialBlueprint, load_arena, read_evidence
from ajet_research.events import LookFinding
from ajet_research.registration import register
from ajet_research.study import Scalar
from ajet_research.suites.versions import REGRESSIONS, planted_wheel
from ajet_research.verifying import verify_study
from ajet_research.versions.arena import RAW, VersionsArena
from ajet_research.versions.comparing import (
    _status,
    compare_versions,
    default_seeds,
    version_study,
)
from ajet_research.versions.environments import environment_of
from ajet_research.versions.history import VersionRow, append_history, read_history
from ajet_research.versions.measures import MEASURES
from ajet_research.versions.page import history_page
from ajet_research.versions.program import PROGRAMS
from ajet_research.versions.wheels import commit_of, core_wheel, kept_version, wheels_of

ROOT = Path(__file__).resolve().parents[2]
FIRST, SECOND = "wheel:first@0123456789ab", "tree@ba9876543210"
PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "agentjet"
version = "7.1"
requires-python = ">=3.11"
[tool.hatch.build.targets.wheel]
packages = ["agentjet"]
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "agentjet" / "versions"


def wheel(directory: Path, code: str = "") -> Path:
    """A directory with a wheel of an agentjet without dependencies."""
    directory.mkdir()
    info = "agentjet-7.1.dist-info"
    files = {
        "agentjet/__init__.py": code,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: agentjet\nVersion: 7.1\n"
        "Provides-Extra: server\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(directory / "agentjet-7.1-py3-none-any.whl", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return directory


def spinning(seconds: float) -> str:
    return f"import time\nwhile time.process_time() < {seconds} + 0.05: pass\n"


def row(**changes: Any) -> VersionRow:
    content: dict[str, Any] = {
        "date": "2026-11-27",
        "measure": "import_cpu",
        "unit": "s",
        "margin": 0.1,
        "relative": True,
        "baseline": FIRST,
        "candidate": SECOND,
        "agentjet": ("7.1", "7.2"),
        "commits": ("", "c" * 40),
        "machine": {"cpu": "<fast>", "fingerprint": "feed"},
        "seeds": [1, 2],
        "values": ([1.0, 1.0], [1.5, None]),
        "ratio": 1.5,
        "low": 1.4,
        "high": None,
        "alpha": 0.05,
        "verdict": "worse",
        "status": "regressed",
        "failed": 1,
        "ledger": "a" * 64,
        **changes,
    }
    return VersionRow.model_validate(content)


@pytest.mark.parametrize("measure", MEASURES)
def test_the_study_of_each_measure_can_be_registered(measure: str) -> None:
    alpha = 0.05 / len(MEASURES)
    seeds = default_seeds(len(MEASURES))
    study = version_study(measure, FIRST, SECOND, seeds=seeds, alpha=alpha)
    registration = register(study, Path())
    assert len(registration.blueprints) == 2 * seeds
    assert study.outcome.smallest == pytest.approx(
        math.log(1 + MEASURES[measure].margin) if MEASURES[measure].relative else 0.05
    )
    # Arms alternate: each block has both.
    arms = list(registration.arms.values())
    assert all(arms[index] != arms[index + 1] for index in range(0, len(arms), 2))


def test_each_measure_but_the_size_has_its_program() -> None:
    assert PROGRAMS.keys() == MEASURES.keys() - {"wheel_size"}


def test_each_measure_is_explained_with_its_margin() -> None:
    page = (ROOT / "docs" / "research-reference.md").read_text(encoding="utf-8")
    for name, its in MEASURES.items():
        (line,) = (one for one in page.splitlines() if one.startswith(f"| `{name}` |"))
        assert (f"| {its.margin:.0%} |".replace("%", " %") if its.relative else "0.05,") in line


@pytest.mark.parametrize("seeds", [5, 21])
def test_seeds_that_can_show_nothing_are_refused(seeds: int) -> None:
    with pytest.raises(ConfigError, match=f"{seeds} seeds .* needs 6 to 20"):
        version_study("help_cpu", FIRST, SECOND, seeds=seeds)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"measure": "speed", "version": FIRST}, "'measure' is one of: import_cpu, "),
        ({"version": "tree"}, "'tree' is not a version"),
        ({"version": "tree@../../etc"}, "is not a version"),
        ({"python": "3.11"}, "Unknown setting 'python' .*known: measure, version"),
    ],
)
def test_other_settings_are_refused(settings: dict[str, Scalar], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        VersionsArena().resolve(settings)


def blueprint(seed: int = 1) -> TrialBlueprint:
    settings: dict[str, Scalar] = {"measure": "import_cpu", "version": FIRST}
    return TrialBlueprint(
        arena="versions", evaluator="e", settings=settings, seed=seed, seconds=1.0
    )


def written(directory: Path, **changes: Any) -> Path:
    raw = {"settings": blueprint().settings, "seed": 1, "machine": {}, "agentjet": "7", **changes}
    (directory / RAW).write_text(json.dumps(raw))
    return directory


def test_a_trial_has_the_median_of_its_samples(tmp_path: Path) -> None:
    arena = load_arena("versions")
    evidence = read_evidence(arena, blueprint(), written(tmp_path, samples=[9.0, 2.0, 3.0]))
    assert evidence.metrics == {"value": 3.0, "log_value": math.log(3.0)}
    other = written(tmp_path, samples=[9.0, 2.0, 3.0], seed=2)
    with pytest.raises(ConfigError, match="belongs to another trial"):
        read_evidence(arena, blueprint(), other)
    # The same size with each seed is not a seed that is ignored.
    assert read_evidence(arena, blueprint(2), other).fingerprint != evidence.fingerprint


def test_a_version_that_fails_has_failed(tmp_path: Path) -> None:
    evidence = read_evidence(
        load_arena("versions"), blueprint(), written(tmp_path, failed="ImportError: agentjet")
    )
    assert (evidence.failed, dict(evidence.metrics)) == ("ImportError: agentjet", {})


def finding(**changes: Any) -> LookFinding:
    content: dict[str, Any] = {
        "verdict": "undecided",
        "reason": "",
        "seeds": [1],
        "missing": [],
        "guardrails": {},
        **dict.fromkeys(("arm_mean", "against_mean", "gain", "high", "p", "wins", "alpha"), 0.1),
        "low": -0.01,
        **changes,
    }
    return LookFinding.model_validate(content)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"verdict": "worse"}, "regressed"),
        ({"verdict": "better"}, "not worse"),
        ({"verdict": "equivalent"}, "not worse"),
        ({"verdict": "invalid"}, "invalid"),
        # Its interval reaches above the margin, which does not matter.
        ({}, "not worse"),
        ({"low": -0.05}, "undecided"),
        ({"low": None}, "undecided"),
        ({"reason": "more pairs are missing than the study allows"}, "undecided"),
    ],
)
def test_a_version_is_not_worse_if_its_interval_excludes_the_margin(
    changes: dict[str, Any], status: str
) -> None:
    assert _status(finding(**changes), 0.05) == status
    assert _status(None, 0.05) == "undecided"


def test_rows_are_appended_once(tmp_path: Path) -> None:
    path = tmp_path / "history" / "versions.jsonl"
    assert append_history(path, [row()]) == 1
    assert append_history(path, [row(), row(ledger="b" * 64)]) == 1
    assert [one.ledger[0] for one in read_history(path)] == ["a", "b"]
    path.write_text(path.read_text() + "{}\n")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="line 3 is not a row of a history"):
        append_history(path, [row(ledger="c" * 64)])
    assert path.read_bytes() == before


def test_the_page_shows_each_row_and_needs_nothing_else() -> None:
    rows = [row(), row(measure="call_cpu", status="not worse", ratio=0.98, high=1.0, low=0.97)]
    page = history_page(rows)
    assert "+50.0 %" in page
    assert "-2.0 %" in page
    assert "&lt;fast&gt; feed" in page
    assert page.count("<svg ") == 2
    assert not any(word in page for word in ("<script", "src=", "href=", "url("))
    assert "There are no comparisons yet" in history_page([])


def test_the_page_of_this_repository_is_that_of_its_history() -> None:
    rows = read_history(ROOT / "benchmarks" / "history" / "versions.jsonl")
    page = (ROOT / "docs" / "versions.html").read_text(encoding="utf-8")
    assert page == history_page(rows), "run `make generate`"


@pytest.mark.parametrize("name", REGRESSIONS)
def test_planted_regressions_change_one_file_of_a_wheel(name: str, tmp_path: Path) -> None:
    planted = REGRESSIONS[name]
    path = tmp_path / "agentjet-7.1-py3-none-any.whl"
    content = "" if planted.code is None else (ROOT / planted.path).read_text(encoding="utf-8")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.py", "")
        if planted.code is not None:
            archive.writestr(planted.path, content)
    (changed,) = planted_wheel(path, planted, tmp_path / "planted").iterdir()
    with zipfile.ZipFile(changed) as archive:
        assert sorted(archive.namelist()) == sorted(["other.py", planted.path])
        its = archive.read(planted.path)
    if planted.code is None:
        assert changed.stat().st_size > path.stat().st_size + planted.size
    else:
        assert its.decode() == content + planted.code
        compile(its, planted.path, "exec")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("branch:main", "is not a source of a version"),
        ("tree:here", "is not a source of a version"),
        ("wheel:{}", "does not have exactly one wheel"),
        ("tag:v9", "does not have such a version"),
        ("commit:0000", "does not have such a version"),
    ],
)
def test_unknown_sources_are_refused(
    source: str, problem: str, tmp_path: Path, cache: Path
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    with pytest.raises(ConfigError, match=problem):
        kept_version(source.format(tmp_path), tmp_path)
    assert list((cache / "wheels").glob("*")) == []


@pytest.mark.processes
def test_commits_tags_and_the_tree_have_wheels_of_their_content(
    tmp_path: Path, cache: Path
) -> None:
    repository = tmp_path / "repository"

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, "-C", repository, *arguments], check=True)

    (repository / "agentjet").mkdir(parents=True)
    (repository / "pyproject.toml").write_text(PROJECT)
    (repository / "agentjet" / "__init__.py").write_text("VALUE = 1\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    git("tag", "v1")
    head = commit_of("tree", repository)
    first = kept_version(head, repository)
    assert first.startswith(f"commit:{head[:12]}@")
    assert kept_version("tag:v1", repository) == f"tag:v1@{first[-12:]}"
    assert kept_version("tree", repository) == f"tree@{first[-12:]}"
    (repository / "agentjet" / "__init__.py").write_text("VALUE = 2\n")
    changed = kept_version("tree", repository)
    assert changed[-12:] != first[-12:]
    assert kept_version("commit:HEAD", repository) == first
    assert commit_of("tree", repository) == f"{head}+"
    assert [one.name for one in wheels_of(changed)] == ["agentjet-7.1-py3-none-any.whl"]
    core_wheel(changed).unlink()
    with pytest.raises(ConfigError, match="which builds them"):
        core_wheel(changed)


@pytest.mark.slow
@pytest.mark.processes
def test_an_environment_has_its_version_and_the_dependencies_of_this_one(
    tmp_path: Path, cache: Path
) -> None:
    version = kept_version(f"wheel:{wheel(tmp_path / 'seven', 'NUMBER = 7')}", tmp_path)
    directory = environment_of(version)
    code = "import agentjet, numpy; print(agentjet.NUMBER, numpy.__version__)"
    python = directory / "bin" / "python"
    done = subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    import numpy as np

    assert done.stdout.split() == ["7", np.__version__]
    # A process that was killed before the end leaves no record.
    (directory / "version.json").unlink()
    (directory / "left").touch()
    assert environment_of(version) == directory
    assert not (directory / "left").exists()
    before = (directory / "version.json").stat().st_mtime_ns
    assert environment_of(version) == directory
    assert (directory / "version.json").stat().st_mtime_ns == before


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_slow_import_has_regressed(tmp_path: Path, cache: Path) -> None:
    fast, slow = (wheel(tmp_path / f"v{n}", spinning(n / 50)) for n in (1, 2))
    where, history = tmp_path / "studies", tmp_path / "history.jsonl"
    page = tmp_path / "page.html"
    arguments = ["research", "versions", "--baseline", f"wheel:{fast}", "--json"]
    arguments += ["--candidate", f"wheel:{slow}", "--measures", "import_cpu"]
    arguments += ["--seeds", "6", "--dir", str(where), "--history", str(history)]
    first = CliRunner().invoke(cli, arguments)
    assert first.exit_code == 1, first.output
    (speed,) = json.loads(first.output)
    assert speed["status"] == "regressed"
    assert speed["low"] > 1.1
    assert speed["agentjet"] == ["7.1", "7.1"]
    # The same command shows the same studies, and appends nothing twice.
    assert CliRunner().invoke(cli, arguments).output == first.output
    assert len(read_history(history)) == 1
    assert verify_study(where / "import_cpu.study").problems == []
    shown = CliRunner().invoke(cli, ["research", "history", str(history), "--page", str(page)])
    assert shown.output.count("wheel:v2@") == 1
    assert "regressed" in page.read_text()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_version_that_cannot_be_imported_has_regressed(tmp_path: Path, cache: Path) -> None:
    good, broken = wheel(tmp_path / "good"), wheel(tmp_path / "broken", "import missing_module")
    versions = [kept_version(f"wheel:{one}", tmp_path) for one in (good, broken)]
    baseline, candidate = versions
    (result,) = compare_versions(
        baseline, candidate, tmp_path / "studies", measures=["import_cpu"], seeds=6
    )
    assert (result.status, result.failed) == ("regressed", 6)
    assert result.values[1] == [None] * 6
    raws = (tmp_path / "studies").glob(f"import_cpu.study/trials/*/store/{RAW}")
    assert {json.loads(raw.read_bytes()).get("failed") for raw in raws} == {
        None,
        "RuntimeError: ModuleNotFoundError: No module named 'missing_module'",
    }
