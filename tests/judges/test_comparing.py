"""Judges by pattern, by schema and as mathematics, in their child processes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentjet import EpisodeOutcome, load_judge
from agentjet.judges import (
    JudgeFailedError,
    RegexJudge,
    RegexJudgeSettings,
    SchemaJudge,
    SchemaJudgeSettings,
    SymbolicJudge,
    SymbolicJudgeSettings,
    bounded,
)
from ajet_core.errors import ConfigError
from ajet_core.interfaces import Judge
from ajet_testing.suites.judge_suite import JudgeSuite

pytestmark = pytest.mark.processes

SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {
        "name": {"type": "string", "pattern": "^(a+)+$"},
        "age": {"type": "integer"},
        "note": {"type": "string"},
    },
    "additionalProperties": False,
}
FITS = '{"name": "aa", "age": 3}'


class TestRegex(JudgeSuite):
    examples: ClassVar[Sequence[tuple[Any, Any, float]]] = (
        ({"pattern": r"[ab]+\d"}, " ab1\n", 1.0),
        ({"pattern": r"[ab]+\d"}, "so: ab1", 0.0),
        ({"pattern": r"[ab]+\d"}, None, 0.0),
    )

    def make_judge(self) -> Judge:
        return RegexJudge(RegexJudgeSettings())


class TestRegexGroup(JudgeSuite):
    examples: ClassVar[Sequence[tuple[Any, Any, float]]] = (
        ({"answer": "Paris"}, "City: London. No, city:  PARIS.", 1.0),
        ({"answer": "Paris"}, "City: Paris. No, city: London.", 0.0),
        ({"answer": "Paris"}, "Paris", 0.0),
    )

    def make_judge(self) -> Judge:
        return RegexJudge(
            RegexJudgeSettings(
                pattern=r"city:\s*(?P<city>\w+)", match="search", group="city", ignore_case=True
            )
        )


class TestSchema(JudgeSuite):
    examples: ClassVar[Sequence[tuple[Any, Any, float]]] = (
        ({"schema": SCHEMA}, FITS, 1.0),
        ({"schema": json.dumps(SCHEMA)}, f"```json\n{FITS}\n```", 1.0),
        ({"schema": SCHEMA}, {"name": "aa", "age": 3}, 1.0),
        ({"schema": SCHEMA}, '{"name": "aa", "age": 3, "more": 1}', 0.0),
        ({"schema": SCHEMA}, '{"name": "aa", "age": NaN}', 0.0),
        ({"schema": SCHEMA}, '{"name": "b", "name": "aa", "age": 3}', 0.0),
        ({"schema": SCHEMA}, "[" * 100_000, 0.0),
    )

    def make_judge(self) -> Judge:
        return SchemaJudge(SchemaJudgeSettings())


class TestPartialSchema(JudgeSuite):
    examples: ClassVar[Sequence[tuple[Any, Any, float]]] = (
        ({"schema": SCHEMA}, FITS, 1.0),
        ({"schema": SCHEMA}, '{"name": "aa", "age": 3, "more": 1}', 2 / 3),
        ({"schema": SCHEMA}, '{"name": "b", "age": 3}', 1 / 3),
        ({"schema": SCHEMA}, '{"age": 3}', 1 / 3),
        ({"schema": SCHEMA}, '{"note": "x"}', 0.0),
        ({"schema": SCHEMA}, "{}", 0.0),
        ({"schema": SCHEMA}, "[]", 0.0),
    )

    def make_judge(self) -> Judge:
        return SchemaJudge(SchemaJudgeSettings(partial=True))


class TestSymbolic(JudgeSuite):
    examples: ClassVar[Sequence[tuple[Any, Any, float]]] = (
        ({"answer": "1/2"}, r"The answer is $\frac{1}{2}$.", 1.0),
        ({"answer": "1/2"}, "50%", 1.0),
        ({"answer": r"$\frac12$"}, "0.5", 1.0),
        ({"answer": "1/2"}, "0.51", 0.0),
        ({"answer": "1/2"}, r"$\frac{1}{2}$, or rather \boxed{2}", 0.0),
        ({"answer": "x^2 + 2*x + 1"}, "(x+1)^2", 1.0),
        ({"answer": "x^2 + 2*x + 1"}, "$(x-1)^2$", 0.0),
        ({"answer": "2*sqrt(2)"}, r"\(\sqrt{8}\)", 1.0),
        ({"answer": "pi/2"}, r"$\frac{\pi}{2}$", 1.0),
        ({"answer": "{1, 2}"}, r"$\{2, 1\}$", 1.0),
        ({"answer": "{1, 2}"}, r"$\{1, 3\}$", 0.0),
        ({"answer": "[0, 1)"}, r"$[0, 1)$", 1.0),
        ({"answer": "[0, 1)"}, r"$[0, 1]$", 0.0),
        ({"answer": "10^{-3}"}, "0.001", 1.0),
        ({"answer": "5 cm"}, "It is 5 cm long.", 1.0),
        ({"answer": "5 cm"}, "50 mm", 1.0),
        ({"answer": "5 cm"}, "5 km", 0.0),
    )

    def make_judge(self) -> Judge:
        return SymbolicJudge(SymbolicJudgeSettings())


def outcome(judge: Judge, task: Any, result: Any) -> EpisodeOutcome:
    return EpisodeOutcome.of(judge(task, result))


def test_a_pattern_that_backtracks_without_end_gives_0() -> None:
    judge = RegexJudge(RegexJudgeSettings(pattern="(a+)+$", cpu_seconds=0.5))
    judged = outcome(judge, {}, "a" * 40 + "b")
    assert (judged.reward, judged.metadata) == (0.0, {"over_limit": "true"})
    assert outcome(judge, {}, "aaa").reward == 1.0


def test_a_schema_whose_pattern_backtracks_without_end_gives_0() -> None:
    judge = SchemaJudge(SchemaJudgeSettings(cpu_seconds=0.5))
    text = json.dumps({"name": "a" * 40 + "b", "age": 3})
    assert outcome(judge, {"schema": SCHEMA}, text).metadata == {"over_limit": "true"}


@pytest.mark.parametrize(
    "text",
    [
        "$9^{9^{9^{9^9}}}$",
        pytest.param("$(x+1)^{100000}$", marks=pytest.mark.nightly),
        pytest.param("$" + "(" * 3000 + "1" + ")" * 3000 + "$", marks=pytest.mark.nightly),
        r"\boxed{" * 3000,
        "__import__('os')._exit(0)",
    ],
)
def test_expressions_that_exhaust_sympy_give_0(text: str) -> None:
    judge = SymbolicJudge(SymbolicJudgeSettings(cpu_seconds=3))
    assert outcome(judge, {"answer": "2"}, text).reward == 0.0
    assert outcome(judge, {"answer": "2"}, "2").reward == 1.0


@pytest.mark.parametrize(
    ("judge", "task", "message"),
    [
        (RegexJudge(RegexJudgeSettings()), {}, "no text in the field 'pattern'"),
        (RegexJudge(RegexJudgeSettings()), {"pattern": "("}, "the pattern .* is invalid"),
        (RegexJudge(RegexJudgeSettings(pattern="a", group="b")), {"answer": 1}, "no group 'b'"),
        (RegexJudge(RegexJudgeSettings(pattern="(?P<b>a)", group="b")), {}, "no field 'answer'"),
        (SchemaJudge(SchemaJudgeSettings()), {}, "no JSON schema in the field 'schema'"),
        (SchemaJudge(SchemaJudgeSettings()), {"schema": {"type": "text"}}, "schema is invalid"),
        (
            SchemaJudge(SchemaJudgeSettings()),
            {"schema": {"$ref": "http://127.0.0.1:9/schema.json"}},
            "refers to 'http://127.0.0.1:9/schema.json', which it does not have",
        ),
        (SymbolicJudge(SymbolicJudgeSettings()), {}, "no field 'answer'"),
        (SymbolicJudge(SymbolicJudgeSettings()), {"answer": ""}, "not a mathematical expression"),
        (
            SymbolicJudge(SymbolicJudgeSettings(cpu_seconds=2)),
            {"answer": "$9^{9^{9^{9^9}}}$"},
            "takes more than 2 s of CPU time",
        ),
    ],
)
def test_wrong_tasks_are_errors_and_no_rewards(judge: Judge, task: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        judge(task, "1")


def test_settings_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"judges\.regex.*the pattern is invalid"):
        load_judge("regex", {"pattern": "("})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_judge("json_schema", {"file": str(tmp_path / "none.json")})


def test_the_schema_of_all_tasks_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    judge = load_judge("json_schema", {"file": str(tmp_path / "schema.json")})
    assert outcome(judge, {}, FITS).reward == 1.0


def test_judges_do_not_block_an_event_loop() -> None:
    judge = load_judge("regex", {"pattern": "a"})

    async def both() -> Any:
        return await asyncio.gather(judge({}, "a"), judge({}, "b"))

    assert [one.reward for one in asyncio.run(both())] == [1.0, 0.0]


def test_children_have_no_keys_and_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    checks = bounded.BoundedChecks(1)
    arguments: dict[str, Any] = {"pattern": "a", "text": "a", "whole": True, "group": ""}
    arguments |= {"expected": None, "ignore_case": False}
    try:
        assert checks.run("regex", 1, **arguments) == 1.0
        (child,) = checks._idle
        environ = Path(f"/proc/{child.pid}/environ")
        if environ.exists():
            assert b"secret" not in environ.read_bytes()
        assert checks.run("regex", 1, **arguments) == 1.0
        assert checks._idle == [child]
    finally:
        checks.close()
    assert child.returncode == 0


def test_building_the_parser_is_not_held_to_the_limit_of_the_check_before() -> None:
    checks = bounded.BoundedChecks(1)
    pattern: dict[str, Any] = {"pattern": "a", "text": "a", "whole": True, "group": ""}
    pattern |= {"expected": None, "ignore_case": False}
    sums: dict[str, Any] = {"expected": "1/2", "text": "0.5", "digits": 6}
    try:
        # The child has .01 to 1 s of CPU time left when it starts to import sympy.
        assert checks.run("regex", 0.01, **pattern) == 1.0
        assert checks.run("symbolic", 5, **sums) == 1.0
        (child,) = checks._idle
        assert checks.run("regex", 0.01, **pattern) == 1.0
        assert checks.run("symbolic", 5, **sums) == 1.0
        assert checks._idle == [child]
    finally:
        checks.close()


def test_a_missing_package_aborts_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = bounded.BoundedChecks(1)
    # The child's path is this process's, here without any package.
    monkeypatch.setattr(sys, "path", [str(Path(os.__file__).parent)])
    monkeypatch.setattr(bounded, "_ISOLATED", ("-S",))
    try:
        with pytest.raises(JudgeFailedError, match=r"needs pip install 'agentjet\[judges\]>=0.1'"):
            checks.run("symbolic", 1, expected="1", text="1", digits=6)
        with pytest.raises(JudgeFailedError, match=r"needs pip install 'agentjet\[judges\]>=0.1'"):
            checks.run("json_schema", 1, schema=True, text="1", partial=False)
    finally:
        checks.close()


def test_a_child_that_is_killed_aborts() -> None:
    checks = bounded.BoundedChecks(1)
    arguments = {"schema": True, "text": "1", "partial": False}
    checks.run("json_schema", 1, **arguments)
    checks._idle[0].kill()
    with pytest.raises(JudgeFailedError, match="status -9"):
        checks.run("json_schema", 1, **arguments)
    assert checks.run("json_schema", 1, **arguments)["reward"] == 1.0
    checks.close()


def spellings(value: Fraction) -> list[str]:
    """The same number in many ways."""
    over, under = value.numerator, value.denominator
    sign, size = ("-" if over < 0 else ""), abs(over)
    percent = value * 100
    # As a fraction of 100 that has no end, a percentage is another number.
    exact = [rf"${float(percent):g}\%$"] if 100 % percent.denominator == 0 else []
    return [
        *exact,
        f"{over}/{under}",
        f"The answer is {over}/{under}.",
        rf"${sign}\frac{{{size}}}{{{under}}}$",
        rf"Thus \boxed{{{sign}\dfrac{{{size}}}{{{under}}}}}.",
        f"{2 * over}/{2 * under}",
        rf"\(\frac{{{7 * over}}}{{{7 * under}}}\)",
        f"$x = {over}/{under}$",
        f"{float(value):.12f}",
    ]


NUMBERS = st.fractions(min_value=-50, max_value=50, max_denominator=40)


@pytest.mark.slow
# The first check starts a process and loads the library.
@settings(deadline=None)
@given(NUMBERS, NUMBERS)
def test_equal_numbers_are_equal_in_all_spellings_and_others_are_not(
    value: Fraction, other: Fraction
) -> None:
    judge = SymbolicJudge(SymbolicJudgeSettings())
    reference = {"answer": f"{value.numerator}/{value.denominator}"}
    with ThreadPoolExecutor(4) as threads:
        rewards = list(
            threads.map(lambda text: outcome(judge, reference, text).reward, spellings(value))
        )
        assert rewards == [1.0] * len(rewards), spellings(value)
        if abs(value - other) > Fraction(1, 10_000):
            wrong = threads.map(
                lambda text: outcome(judge, reference, text).reward, spellings(other)
            )
            assert set(wrong) == {0.0}
