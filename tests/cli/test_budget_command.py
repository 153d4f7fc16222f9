"""`ajet budget` and the rows of `ajet status` about time and money, in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ajet_cli.commands.run import budget as _budget_command  # noqa: F401  (imported before it is patched)
from ajet_cli.main import cli
from ajet_core.protocol import BudgetConfig, ServerStatus

pytestmark = pytest.mark.processes

GOLDEN = Path(__file__).parents[1] / "protocol" / "golden" / "ServerStatus.json"


class BudgetedServer:
    """Has one status, whose budget can be set."""

    status_now: ServerStatus

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> BudgetedServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def status(self) -> ServerStatus:
        return type(self).status_now

    def set_budget(self, *, usd: float | None = None, hours: float | None = None) -> BudgetConfig:
        budget = BudgetConfig(usd=usd, hours=hours)
        status = type(self).status_now
        assert status.spending is not None
        spending = status.spending.model_copy(update={"budget": budget})
        type(self).status_now = status.model_copy(update={"spending": spending})
        return budget


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> type[BudgetedServer]:
    BudgetedServer.status_now = ServerStatus.model_validate_json(GOLDEN.read_bytes())
    module = sys.modules["ajet_cli.commands.run.budget"]
    monkeypatch.setattr(module, "SwarmClient", BudgetedServer)
    return BudgetedServer


def ajet(*args: str) -> Result:
    return CliRunner().invoke(cli, ["budget", *args], prog_name="ajet")


def test_it_shows_time_cost_and_what_is_left(server: type[BudgetedServer]) -> None:
    lines = {line.split("  ")[0]: line for line in ajet().stdout.splitlines()}
    assert "2 h 30 min for 90 more steps (90 %: 2 h 13 min to 2 h 46 min)" in lines["time left"]
    assert "rollout 1 h 0 min" in lines["time"]
    assert "2 h100: boot 0.01 h, rollout 2 h" in lines["devices"]
    assert "6.53 USD (devices 6.03; judge gpt-5-mini 0.50 for 1125000 tokens" in lines["cost"]
    assert "6.53 of 40 USD, 1 of 12 hours spent" in lines["budget"]


def test_a_limit_that_is_not_given_stays(server: type[BudgetedServer]) -> None:
    assert json.loads(ajet("--usd", "60", "--json").stdout)["budget"] == {
        "usd": 60.0,
        "hours": 12.0,
    }


def test_a_limit_can_be_removed(server: type[BudgetedServer]) -> None:
    assert json.loads(ajet("--usd", "none", "--json").stdout)["budget"]["usd"] is None


@pytest.mark.parametrize("limit", ["0", "-3", "much", "inf", "nan"])
def test_a_limit_that_is_none_is_refused(server: type[BudgetedServer], limit: str) -> None:
    result = ajet("--hours", limit)
    assert result.exit_code == 2
    assert "neither a number above 0" in result.stderr


def test_no_run_is_said_to_have_no_costs(server: type[BudgetedServer]) -> None:
    server.status_now = server.status_now.model_copy(update={"spending": None})
    assert ajet().stdout.startswith("no run is configured")
