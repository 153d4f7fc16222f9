"""What of a run's configuration is shown to whom."""

from __future__ import annotations

from typing import Any

import pytest

from ajet_core.protocol import RunConfig, RunStatus, ServerState, TokenScope
from ajet_server.http.visibility import run_for
from ajet_server.security.credentials import Token

SETTINGS: dict[str, Any] = {
    "api_key": "hunter2",
    "kv_tokens": 7,
    "headers": [{"Authorization_Token": "hunter2", "name": "x"}],
    "credentials": {"user": "hunter2", "port": 1},
    "device": "cpu",
}


@pytest.mark.parametrize("scope", ["client", "view", "control"])
def test_secrets_in_settings_are_shown_to_control_alone(scope: TokenScope) -> None:
    config = RunConfig.model_validate(
        {
            "model": {"path": "m"},
            **{
                kind: {"name": "x", "settings": SETTINGS}
                for kind in ("engine", "trainer", "merger")
            },
        }
    )
    run = RunStatus(run_id="r", state=ServerState.OFFLINE, config=config)
    seen = run_for(Token("t", "t", scope, ""), run)
    assert ("hunter2" in seen.model_dump_json()) is (scope == "control")
    assert seen.config.engine.settings["kv_tokens"] == 7
    assert seen.config.trainer.settings["device"] == "cpu"
    assert seen.config.merger.settings["credentials"]["port"] == 1
    assert run.config.engine.settings == SETTINGS
