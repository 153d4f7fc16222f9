"""Errors of a run's configuration name the setting that was meant."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentjet import RunConfig
from ajet_core.protocol import ModelConfig


def refused(**sections: Any) -> ValidationError:
    with pytest.raises(ValidationError) as error:
        RunConfig.model_validate({"model": {"path": "/m"}, **sections})
    return error.value


@pytest.mark.parametrize(
    ("sections", "where", "meant"),
    [
        ({"algorithm": {"agregation": "x"}}, ("algorithm", "agregation"), "'aggregation'"),
        ({"bathc": {}}, ("bathc",), "'batch'"),
        ({"learning_rate": 1e-3}, ("learning_rate",), "'algorithm.learning_rate'"),
    ],
)
def test_a_misspelled_setting_is_recognised(
    sections: dict[str, Any], where: tuple[str, ...], meant: str
) -> None:
    (detail,) = refused(**sections).errors()
    assert (detail["type"], detail["loc"]) == ("extra_forbidden", where)
    assert detail["msg"] == f"unknown setting (did you mean {meant}?)"


def test_a_setting_that_resembles_none_gets_the_known_ones() -> None:
    (detail,) = refused(batch={"zzz": 1}).errors()
    assert detail["msg"].startswith("unknown setting; known here: full_by, tasks, ")


def test_other_errors_keep_their_place_and_no_error_has_an_address() -> None:
    error = refused(algorithm={"learning_rate": -1}, batch={"tusks": 1})
    assert {each["loc"] for each in error.errors()} == {
        ("algorithm", "learning_rate"),
        ("batch", "tusks"),
    }
    assert "Input should be greater than 0" in str(error)
    assert "http" not in str(error)


def test_braces_of_a_value_are_shown_as_they_are() -> None:
    text = str(refused(algorithm={"{x}": 1, "schedule": "{y}"}))
    assert "algorithm.{x}" in text
    assert "{y}" in text


def test_the_constructor_and_json_name_it_too() -> None:
    with pytest.raises(ValidationError, match="did you mean 'batch'"):
        RunConfig(model=ModelConfig(path="/m"), bathc={"tasks": 2})  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match=r"did you mean 'batch\.tasks'"):
        RunConfig.model_validate_json('{"model": {"path": "/m"}, "tasks": 2}')
