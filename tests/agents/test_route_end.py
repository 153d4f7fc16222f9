"""What an adapter keeps for one episode ends with it."""

from __future__ import annotations

import logging

import pytest

from agentjet.agents import Route
from ajet_core.errors import RoutingError
from ajet_core.interfaces import ModelEndpoint


def test_functions_are_called_once_when_the_program_has_returned() -> None:
    route, called = Route({}), list[str]()
    route.at_end(lambda: called.append("one"))
    assert called == []
    route.finish()
    route.finish()
    assert called == ["one"]


def test_after_the_end_they_are_called_at_once() -> None:
    route, called = Route({}), list[str]()
    route.finish()
    route.at_end(lambda: called.append("late"))
    assert called == ["late"]


def test_one_that_raises_is_logged_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    route, called = Route({}), list[str]()
    route.at_end(lambda: 1 / 0)
    route.at_end(lambda: called.append("other"))
    with caplog.at_level(logging.ERROR, "ajet.agents"):
        route.finish()
    assert called == ["other"]
    assert "ZeroDivisionError" in caplog.text


def test_calls_are_refused_after_the_end() -> None:
    route = Route({"": ModelEndpoint("http://127.0.0.1:9/v1", "key")})
    assert route.endpoint(None, "any").api_key == "key"
    route.finish()
    with pytest.raises(RoutingError, match="over"):
        route.endpoint(None, "any")
