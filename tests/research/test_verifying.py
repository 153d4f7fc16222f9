"""Verification: what was forged is caught, and what was not is left in peace."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from ajet_research.report.document import Document, Exact, Quote, Reference, TableRow, Text
from ajet_research.report.links import unlinked_numerals
from ajet_research.report.prose import refusals
from ajet_research.suites.mutations import FORGERIES, finished_study
from ajet_research.verifying import verify_study


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_study(tmp_path_factory.mktemp("study"), world="medium")


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_caught(finished: Path, tmp_path: Path, name: str) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(finished, forged)
    FORGERIES[name](forged, random.Random(7))
    assert verify_study(forged).problems


@pytest.mark.parametrize("world", ["survivors", "seedless", "slice", "heavy", "unrepeatable"])
def test_what_was_not_forged_verifies(tmp_path: Path, world: str) -> None:
    result = verify_study(finished_study(tmp_path, world=world))
    assert result.problems == []
    assert result.finished
    assert result.numerals > 200


def test_a_raw_store_of_another_form_is_a_problem_and_no_traceback(
    finished: Path, tmp_path: Path
) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(finished, forged)
    raw = next(forged.glob("trials/*/store/raw.jsonl"))
    raw.write_text(raw.read_text().replace("task-3", "task-33"))
    problems = verify_study(forged).problems
    assert problems[0].endswith("its raw store has changed.")
    assert "cannot be read: KeyError: 'task-3'" in problems[1]


def test_verification_changes_nothing(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert verify_study(finished).problems == []
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_a_copy_elsewhere_verifies(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "elsewhere")
    assert verify_study(tmp_path / "elsewhere").problems == []


def test_a_directory_without_a_study_does_not_verify(tmp_path: Path) -> None:
    assert verify_study(tmp_path).problems == [f"There is no study in {tmp_path}."]


def test_text_of_a_report_cannot_have_a_numeral() -> None:
    with pytest.raises(ValueError, match="a bare numeral in the text"):
        Text("better by 3")


def test_a_row_without_an_id_cannot_have_a_numeral() -> None:
    with pytest.raises(ValueError, match="without an id"):
        TableRow([(Exact("3"),)])


def test_numerals_without_a_target_are_counted() -> None:
    document = Document("Report")
    document.paragraph(Reference("1", "here"), Text(" and "), Reference("2", "nowhere"))
    document.table(["value"], [TableRow([(Exact("1"),)], "here")])
    page = document.html().replace("<h1>Report", "<h1>Report 4")
    assert unlinked_numerals(page) == (["4", "2"], 4)


def test_quoted_text_cannot_break_out_of_its_page() -> None:
    document = Document("Report")
    document.paragraph(Quote("<script>alert(1)</script> [x](javascript:2) | `3`", "study"))
    assert "<script>" not in document.html()
    assert "<script>" not in document.markdown().replace("\\<", "")
    assert "[x](" not in document.markdown()


@pytest.mark.parametrize(
    ("text", "verdicts", "refused"),
    [
        ("Use b: it is better.", [["better"]], False),
        ("Use the one that is better.", [["better", "worse"]], False),
        ("Use b: it is better.", [["better", "undecided"]], True),
        ("Use b: it is better.", [], True),
        ("Both are equivalent.", [["equivalent"]], False),
        ("Both are equivalent.", [["better"]], True),
        ("c is better, and b is equivalent to a.", [["better"], ["equivalent"]], False),
        ("Nothing was shown.", [], False),
        ("It is half as slow.", [["better"]], True),
        ("b is significantly better.", [["better"]], True),
    ],
)
def test_words_need_the_verdict_that_carries_them(
    text: str, verdicts: list[list[str]], refused: bool
) -> None:
    assert bool(refusals(text, verdicts)) is refused  # type: ignore[arg-type]
