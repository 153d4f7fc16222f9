"""The audit log: actor, action, origin and outcome, also of a limited number of refusals."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import AuthError, ForbiddenError
from ajet_server.security.audit import REFUSALS_PER_MINUTE, AuditLog
from ajet_testing.servers import CLIENT, CONTROL, Running, bearer, new_token, revoke


def lines(run_dir: Path) -> list[dict[str, Any]]:
    text = (run_dir / "audit.jsonl").read_text(encoding="ascii")
    return [json.loads(line) for line in text.splitlines()]


async def test_every_control_action_is_a_line_with_its_outcome(server: Running) -> None:
    await server.put_run(model={"path": "/etc"})
    await server.roll()
    await server.put_run(seed=5)
    token_id, operator = await new_token(server, "operator", scope="control")
    await server.http.post("/v1/run/stop", headers=operator)
    await server.http.post("/v1/run/stop", headers=CONTROL)
    await revoke(server, token_id)
    done = [(line["action"], line["token"], line["outcome"]) for line in lines(server.run_dir)]
    assert done == [
        ("run.configure", "control", "invalid_model"),
        ("run.configure", "control", "done"),
        ("run.start", "control", "done"),
        ("run.configure", "control", "wrong_state"),
        ("token.create", "control", "done"),
        ("run.stop", token_id, "done"),
        ("run.stop", "control", "wrong_state"),
        ("token.revoke", "control", "done"),
    ]
    first, *_, created, _, _, revoked = lines(server.run_dir)
    assert first["peer"] == "127.0.0.1"
    assert first["time"].endswith("+00:00")
    assert first["model"] == "/etc"
    assert (created["name"], created["id"], created["scope"]) == ("operator", token_id, "control")
    assert revoked["id"] == token_id


async def test_refused_attempts_are_lines_without_what_was_tried(server: Running) -> None:
    await server.http.post("/v1/run/stop", headers=bearer("guess-of-an-attacker"))
    await server.http.post("/v1/run/stop", headers=CLIENT)
    found = [(line["action"], line["token"], line["outcome"]) for line in lines(server.run_dir)]
    assert found == [
        ("POST /v1/run/stop", "", "invalid_api_key"),
        ("POST /v1/run/stop", "client", "forbidden"),
    ]
    assert "guess" not in (server.run_dir / "audit.jsonl").read_text()


async def test_only_so_many_refusals_are_written_and_the_rest_is_counted(tmp_path: Path) -> None:
    now = 1000.0
    log = AuditLog(tmp_path, lambda: now)
    for _ in range(REFUSALS_PER_MINUTE + 5):
        await log.refused("GET /v1/status", "", "10.0.0.1", AuthError("unknown token"))
    assert len(lines(tmp_path)) == REFUSALS_PER_MINUTE
    now += 61.0
    await log.refused("GET /v1/status", "", "10.0.0.1", ForbiddenError("no"))
    assert lines(tmp_path)[-1]["not_written"] == 5
    async with log.action("run.stop", "control", "10.0.0.1"):
        pass
    assert lines(tmp_path)[-1]["action"] == "run.stop"


@pytest.mark.parametrize("path", ["/v1/%0a%7b%22action%22:%22run.stop%22%7d", "/v1/%e2%80%a8x"])
async def test_nothing_that_is_sent_can_look_like_another_line(server: Running, path: str) -> None:
    await server.http.get(path)
    (line,) = lines(server.run_dir)
    assert line["action"].startswith("GET /v1/")
    assert line["outcome"] == "invalid_api_key"


async def test_a_full_disk_keeps_nobody_from_stopping_a_run(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await server.roll()
    real = os.open

    def full(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith("audit.jsonl"):
            raise OSError(28, "No space left on device")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", full)
    answer = await server.http.post("/v1/run/stop", headers=CONTROL)
    assert answer.status_code == 200
    (said,) = [r for r in caplog.records if r.name == "ajet.audit"]
    assert said.levelno == logging.ERROR
    assert '"run.stop"' in said.getMessage()


async def test_a_link_in_the_place_of_the_log_is_not_followed(
    server: Running, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    (server.run_dir / "audit.jsonl").symlink_to(elsewhere)
    await server.put_run()
    assert elsewhere.read_text() == ""
