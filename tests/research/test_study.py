"""The study file: problems have their line, and the known names."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_core.errors import ConfigError
from ajet_research.study import line_of, parse_study, study_text
from tests.research.studies import TEXT, study


def refusal(old: str, new: str) -> str:
    assert old in TEXT
    with pytest.raises(ConfigError) as error:
        parse_study(TEXT.replace(old, new), "study.toml")
    return error.value.message


def line(text: str) -> int:
    return next(n for n, one in enumerate(TEXT.splitlines(), 1) if one.startswith(text))


def test_an_unknown_key_is_refused_with_its_line_and_the_known_ones() -> None:
    message = refusal("smallest = 0.2", "smalest = 0.2")
    at = f"study.toml, line {line('smallest')}"
    assert f"{at}: unknown key 'smalest'; known: metric, smallest, failed, guardrails" in message
    assert f"line {line('[outcome]')}: outcome lacks 'smallest'" in message


def test_an_unknown_table_is_refused() -> None:
    assert "unknown key 'models'; known: schema, topic" in refusal("[budget]", "[models]\n[budget]")


def test_a_wrong_type_is_refused_with_its_line() -> None:
    message = refusal("trials = 20", 'trials = "many"')
    assert f"study.toml, line {line('trials')}: budget.trials: Input should be" in message


def test_an_arm_without_a_level_is_refused_with_the_levels() -> None:
    message = refusal('against = { method = "a" }', "against = {}")
    at = f"study.toml, line {line('against')}"
    assert message == f"{at}: 'against' lacks a level of 'method'; its levels: \"a\", \"b\""


def test_an_unknown_level_is_refused() -> None:
    message = refusal('against = { method = "a" }', 'against = { method = "z" }')
    assert '"z" is not a level of \'method\': "a", "b"' in message


def test_an_unknown_factor_is_refused() -> None:
    message = refusal('against = { method = "a" }', 'against = { method = "a", size = 1 }')
    assert "unknown factor 'size'; known: method" in message


def test_an_unknown_comparison_is_refused() -> None:
    message = refusal('when = { b-vs-a = "better" }', 'when = { c-vs-a = "better" }')
    assert "unknown comparison 'c-vs-a'; known: b-vs-a" in message


def test_an_unknown_verdict_is_refused() -> None:
    message = refusal('when = { b-vs-a = "better" }', 'when = { b-vs-a = "great" }')
    assert f"line {line('when')}" in message
    assert "'better', 'worse', 'equivalent', 'undecided' or 'invalid'" in message


def test_looks_in_the_wrong_order_are_refused() -> None:
    assert "more seeds than the one before" in refusal("seeds = 8", "seeds = 6")


def test_another_schema_is_refused_by_number() -> None:
    message = refusal("schema = 1", "schema = 2")
    assert message.startswith("study.toml, line 1: 'schema' is 2, and this version")


def test_what_is_not_toml_is_refused() -> None:
    assert "study.toml cannot be decoded" in refusal("[topic]", "[topic")


@pytest.mark.parametrize(
    ("keys", "number"),
    [
        (("outcome", "smallest"), line("smallest")),
        (("outcome", "missing"), line("[outcome]")),
        (("decide", 1, "conclude"), line('conclude = "Keep')),
        (("decide", 1), line("otherwise") - 1),
        (("nothing",), 1),
    ],
)
def test_lines_are_those_of_the_key_or_of_its_table(
    keys: tuple[str | int, ...], number: int
) -> None:
    assert line_of(TEXT, keys) == number


def test_layout_does_not_change_the_digest() -> None:
    spaced = TEXT.replace(" = ", "=").replace("\n\n", "\n# a comment\n")
    assert parse_study(spaced, "study.toml").digest() == study().digest()


def test_content_changes_the_digest() -> None:
    assert study(outcome__smallest=0.3).digest() != study().digest()


def test_a_topic_has_its_study_in_its_head(tmp_path: Path) -> None:
    path = tmp_path / "topic.md"
    path.write_text(f"+++\n{TEXT}+++\n# Methods\n\nWhich one?\n", encoding="utf-8")
    assert parse_study(study_text(path), str(path)).digest() == study().digest()


def test_a_line_of_a_topic_is_that_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "topic.md"
    path.write_text(f"+++\n{TEXT.replace('trials = 20', 'trials = 0')}+++\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"line {line('trials') + 1}: budget.trials"):
        parse_study(study_text(path), str(path))


def test_a_topic_without_a_study_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "topic.md"
    path.write_text("# Which method?\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="has no study between two lines"):
        study_text(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no study file .*none\.toml"):
        study_text(tmp_path / "none.toml")


@pytest.mark.parametrize("level", ["nan", "inf", "-inf"])
def test_a_level_that_is_not_finite_is_refused(level: str) -> None:
    assert "finite number" in refusal('levels = ["a", "b"]', f"levels = [0.5, {level}]")
