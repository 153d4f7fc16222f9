"""The suites of ``ajet research bench``, with few studies, and the other commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ajet_cli.main import cli
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.state import fold
from ajet_research.suites import SUITES
from ajet_research.suites.links import _left_out
from ajet_research.suites.mutations import finished_study
from ajet_research.suites.planted import PEERS, upper_bound
from tests.research.studies import TEXT, written


def ajet(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["research", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.mark.slow
def test_few_null_studies_make_few_false_claims_and_other_rules_many() -> None:
    result = SUITES["null"](seed=3, size=12)
    assert result["false_claims"] <= 2
    assert result["peers"]["keep_if_better"] > 0.6
    assert set(result["peers"]) == set(PEERS)


@pytest.mark.slow
def test_large_effects_are_found_and_trivial_ones_are_not_called_better() -> None:
    result = SUITES["effects"](seed=3, size=6)
    assert result["right"]["large"] == 1.0
    assert result["right"]["one"] >= 0.5
    assert "better" not in result["verdicts"]["small"]


@pytest.mark.slow
def test_each_numeral_of_a_report_links_and_no_trial_is_left_out() -> None:
    result = SUITES["links"](seed=3)
    assert (result["unlinked"], result["unreported_trials"]) == ([], [])
    assert result["passed"]
    assert result["linked"] == result["numerals"] > 1000


def test_a_trial_that_a_report_lacks_is_noticed(tmp_path: Path) -> None:
    finished_study(tmp_path)
    state = fold(read_ledger(tmp_path / LEDGER))
    assert _left_out(tmp_path, state) == []
    first, *_ = state.trials
    page = tmp_path / "report/report.html"
    page.write_text(page.read_text().replace(f'id="trial-{first}"', ""))
    assert _left_out(tmp_path, state) == [first]


@pytest.mark.parametrize(("count", "bound"), [(0, 0.0074), (25, 0.0729), (500, 1.0)])
def test_the_upper_bound_is_that_of_clopper_and_pearson(count: int, bound: float) -> None:
    assert upper_bound(count, 500) == pytest.approx(bound, abs=2e-4)


def test_other_rules_find_a_clear_effect_and_leave_failed_trials_out() -> None:
    rng = np.random.default_rng(0)
    table = np.stack([rng.normal(0, 1, 12), rng.normal(5, 1, 12)])
    assert all(rule(table) for rule in PEERS.values())
    table[1, 1:] = np.nan
    assert not PEERS["peeking_t_test"](table)
    assert not PEERS["three_seeds"](table)


@pytest.mark.slow
@pytest.mark.processes
def test_the_commands_run_show_verify_and_repeat_a_study(tmp_path: Path) -> None:
    looks = "{ seeds = 6, alpha = 0.04 }, { seeds = 8, alpha = 0.01 }"
    source = written(tmp_path, TEXT.replace(looks, "{ seeds = 6, alpha = 0.05 }"))
    code, output = ajet("run", source, "--parallel", 4)
    assert code == 0
    directory = tmp_path / "study.study"
    assert f"Report: {directory / 'report' / 'report.html'}" in output
    code, output = ajet("status", directory, "--json")
    status = json.loads(output)
    assert (code, status["phase"]) == (0, "finished")
    code, output = ajet("run", directory, "--json")
    assert (code, json.loads(output)) == (0, status)
    code, output = ajet("verify", directory)
    assert code == 0
    assert output.startswith("0 problems: ")
    code, output = ajet("replicate", directory, "--parallel", 4, "--json")
    result = json.loads(output)
    assert code == (0 if result["repeated"] else 1)
    assert ajet("verify", tmp_path / "study.study-new")[0] == 0
    replica = json.loads((tmp_path / "study.study-new" / "study.json").read_text())
    assert replica["inference"]["first_seed"] == 7


def test_a_forged_report_ends_with_one(tmp_path: Path) -> None:
    finished_study(tmp_path)
    path = tmp_path / "report" / "report.md"
    path.write_text(path.read_text() + "It also works elsewhere.\n")
    code, output = ajet("verify", tmp_path)
    assert code == 1
    assert output.startswith("report.md is not what follows from the ledger.")


def test_the_study_file_in_its_directory_is_the_same_study(tmp_path: Path) -> None:
    finished_study(tmp_path)
    assert ajet("run", tmp_path / "study.json") == ajet("run", tmp_path)
    assert not (tmp_path / "study.study").exists()


def test_a_replica_does_not_overwrite_another_study(tmp_path: Path) -> None:
    first, second = finished_study(tmp_path / "1"), finished_study(tmp_path / "2", world="null")
    before = (second / "study.json").read_bytes()
    code, output = ajet("replicate", first, "--dir", second)
    assert (code, "has another study" in output) == (2, True)
    assert (second / "study.json").read_bytes() == before


def test_a_refused_study_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    source = written(tmp_path, TEXT.replace("trials = 20", "trials = 2"))
    code, output = ajet("run", source)
    assert code == 2
    assert "ajet: error: The study is refused:" in output
    assert "Traceback" not in output


def test_status_of_a_directory_without_a_study_is_an_error(tmp_path: Path) -> None:
    assert ajet("status", tmp_path) == (2, f"ajet: error: There is no study in {tmp_path}.\n")
