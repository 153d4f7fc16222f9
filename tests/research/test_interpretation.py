"""Prose of researchers: numbers and claims are references, and what counts or compares is not."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_research.events import Interpreted
from ajet_research.ledger import LedgerRow
from ajet_research.report import (
    Referents,
    compile_report,
    interpretation_problems,
    normalized,
    referents_of,
    unlinked_numerals,
    word_problems,
)
from tests.research.studies import study
from tests.research.test_leader import led
from tests.support.tiers import examples


@functools.cache
def undecided() -> tuple[list[LedgerRow], Referents]:
    """The rows of a study whose verdict is undecided, and what prose about it may refer to."""
    leader = led(study())
    return leader.ledger.rows, referents_of(leader.state)


@pytest.fixture(scope="module")
def referents() -> Referents:
    return undecided()[1]


@pytest.mark.parametrize(
    "prose",
    [
        "The study asked whether method b is worth its cost. {{claim b-vs-a undecided}}.",
        "It is {{number b-vs-a.gain}}, from {{number b-vs-a.low}} to {{number b-vs-a.high}}.",
        "{{finding b-vs-a}} is a comparison of {{arm b-vs-a}} and {{against b-vs-a}}.",
        "A likely explanation is the noise of the seeds.\n\nThis was not tested here.",
        "Future work should repeat the study with fresh seeds and on another task.",
        "The expectation that was registered before the study was not met.",
    ],
)
def test_prose_that_may_be_printed(referents: Referents, prose: str) -> None:
    assert interpretation_problems(prose, referents) == []


@pytest.mark.parametrize(
    ("prose", "problem"),
    [
        ("", "is empty"),
        ("The score is 3 here.", "'3' is a number"),
        ("The score is \uff13 in it.", "is not ASCII"),
        ("The score is half of it.", "'half' is a number"),
        ("It is a dozen of them.", "'dozen' is a number"),
        ("It is tenfold in the study.", "'tenfold' is a number"),
        ("In the study b is better.", "'better' compares"),
        ("In the study b is bet-ter.", "'better' compares"),
        ("In the study b is *bet*ter.", "'better' compares"),
        ("In the study b is bet\u200bter.", "is not ASCII"),
        ("It has more of it than a.", "'than' compares"),
        ("It is recommended to use b.", "'recommended' compares"),
        ("It is the same as a.", "'same' compares"),
        ("The study proves it.", "'proves' claims more"),
        ("{{claim b-vs-a better}}.", "the verdict of b-vs-a is undecided, not better"),
        ("It is false that {{claim b-vs-a undecided}}.", "is a sentence of its own"),
        ("{{claim b-vs-a undecided}}, which is false.", "is a sentence of its own"),
        ("{{claim c-vs-a undecided}}.", "unknown comparison 'c-vs-a'; known: b-vs-a"),
        ("It is {{number b-vs-a.none}} here.", "the report has no number 'b-vs-a.none'"),
        ("It is {{b-vs-a}} here.", "a reference is one of"),
        ("It is {{}} here.", "an empty reference"),
        ("It is {{number b-vs-a.gain} here.", "braces that are not a reference"),
        ("See the report at www.example.org for it.", "'www.' is a part of an address"),
        ("Methode b ist besser als Methode a.", "is not a plain English sentence"),
        ("El metodo b es mejor que el otro.", "is not a plain English sentence"),
        ("The report of it. " * 300, "more than 3000 characters"),
    ],
)
def test_prose_that_may_not_be_printed(referents: Referents, prose: str, problem: str) -> None:
    problems = interpretation_problems(normalized(prose), referents)
    assert any(problem in one for one in problems), problems


def test_usual_signs_of_typography_are_no_problem(referents: Referents) -> None:
    prose = normalized(
        "The arm\u2019s score \u2014 it is  an\u00a0outcome \u2014 \u201cis\u201d it\u2026"
    )
    assert prose == 'The arm\'s score - it is an outcome - "is" it...'
    assert interpretation_problems(prose, referents) == []


def test_a_problem_is_named_once() -> None:
    assert list(dict.fromkeys(word_problems("It is better, better, bet-ter."))) == [
        "'better' compares"
    ]


WORDS = st.sampled_from(
    [
        *("the", "arm", "is", "in", "of", "study", "to", "seeds", ".", ". ", "\n\n"),
        *("{{number b-vs-a.gain}}", "{{claim b-vs-a undecided}}.", "{{arm b-vs-a}}"),
        *("3", "\u00b2", "XIV", "{{", "}}", "<b>", "| a |", "# it", "`"),
    ]
)


@given(st.lists(WORDS | st.text(max_size=6), max_size=14).map(" ".join))
@settings(deadline=None, max_examples=examples(80))
def test_whatever_is_accepted_has_no_bare_numeral_and_no_markup(text: str) -> None:
    rows, known = undecided()
    prose = normalized(text)
    if interpretation_problems(prose, known):
        return
    event = Interpreted(researcher="r", prose=prose, problem="")
    row = LedgerRow(len(rows) + 1, rows[0].time, 0.0, event, "0" * 64)
    page = compile_report([*rows, row]).files["report.html"]
    assert unlinked_numerals(page)[0] == []
    assert "<b>" not in page
