"""`ajet mixture`, in this process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ajet_cli.commands.run import mixture as _mixture_command  # noqa: F401  (imported before it is patched)
from ajet_cli.main import cli
from ajet_core.protocol import MixtureStatus

pytestmark = pytest.mark.processes

STATUS = {
    "config": {
        "ratios": {"math": 0.4, "code": 0.6},
        "schedule": [{"from_step": 8, "ratios": {"code": 0.25, "terminal": 0.75}}],
    },
    "step": 3,
    "tags": {
        "math": {"ratio": 0.5, "slots": 4, "ready": 1, "under_way": 2, "blocked": False},
        "code": {"ratio": 0.5, "slots": 4, "ready": 0, "under_way": 0, "blocked": True},
    },
}
NONE = {"config": None, "step": 1}


class FakeClient:
    """Has one mixture, and takes note of what is put."""

    answer: dict[str, Any]
    put: list[Mapping[str, float]]

    def __init__(self, url: str, token: str | None, *, retries: int) -> None:
        pass

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def mixture(self) -> MixtureStatus:
        return MixtureStatus.model_validate(self.answer)

    def set_mixture(self, ratios: Mapping[str, float]) -> MixtureStatus:
        self.put.append(ratios)
        return self.mixture()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    FakeClient.answer, FakeClient.put = STATUS, []
    monkeypatch.setattr(sys.modules["ajet_cli.commands.run.mixture"], "SwarmClient", FakeClient)
    return FakeClient


def ajet(*args: str) -> Result:
    return CliRunner().invoke(cli, ["mixture", *args], prog_name="ajet")


def rows(result: Result) -> dict[str, list[str]]:
    assert result.exit_code == 0
    return {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}


def test_it_shows_the_batch_that_is_filled_and_the_ratios_of_the_next(
    server: type[FakeClient],
) -> None:
    found = rows(ajet())
    assert found["math"] == ["0.5", "0.4", "4", "1", "2"]
    assert found["code"][:5] == ["0.5", "0.6", "4", "0", "0"]
    assert " ".join(found["code"][5:]).startswith("no client is working on it")
    assert server.put == []


def test_tags_are_shown_as_text(server: type[FakeClient]) -> None:
    progress = {"ratio": 1.0, "slots": 4, "ready": 1, "under_way": 2, "blocked": False}
    tag = "[/x]\x1b[2J"
    server.answer = {"config": {"ratios": {tag: 1.0}}, "step": 1, "tags": {tag: progress}}
    assert rows(ajet())["[/x]\\u001b[2J"] == ["1", "1", "4", "1", "2"]


def test_the_ratios_of_the_next_batch_are_those_of_the_schedule(server: type[FakeClient]) -> None:
    server.answer = {**STATUS, "step": 7}
    found = rows(ajet())
    assert found["math"] == ["0.5", "4", "1", "2"]
    assert found["code"][:2] == ["0.5", "0.25"]
    assert found["terminal"] == ["0.75", "0.75"]


def test_without_an_active_run_the_next_batch_is_the_first_there_is(
    server: type[FakeClient],
) -> None:
    server.answer = {**STATUS, "step": 8, "tags": {}}
    assert rows(ajet()) | {"tag": []} == {
        "tag": [],
        "code": ["0.25", "0.25"],
        "terminal": ["0.75", "0.75"],
    }


def test_it_changes_the_ratios_and_shows_what_came_of_it(server: type[FakeClient]) -> None:
    result = ajet("math=0.4", "a=b=0.6", "--json")
    assert server.put == [{"math": 0.4, "a=b": 0.6}]
    assert MixtureStatus.model_validate_json(result.stdout) == MixtureStatus.model_validate(STATUS)


def test_a_run_without_a_mixture_is_said_to_have_none(server: type[FakeClient]) -> None:
    server.answer = NONE
    assert ajet().stdout.startswith("there is no mixture")


@pytest.mark.parametrize("wrong", ["math", "=0.4", "math=", "math=much", "math:0.4"])
def test_what_is_no_ratio_is_a_usage_error(server: type[FakeClient], wrong: str) -> None:
    result = ajet("code=0.6", wrong)
    assert (result.exit_code, server.put) == (2, [])
    assert repr(wrong) in result.stderr


def test_a_tag_is_named_once(server: type[FakeClient]) -> None:
    result = ajet("math=0.4", "math=0.6")
    assert (result.exit_code, server.put) == (2, [])
    assert "each tag once" in result.stderr
