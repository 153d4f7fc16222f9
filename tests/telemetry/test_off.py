"""Telemetry that is off costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ajet_core.errors import ConfigError
from ajet_installation.settings import Settings, TelemetrySettings
from ajet_server.build import telemetry_of

PROGRAM = """
import sys
from ajet_installation.settings import Settings
from ajet_testing.plugins import scripted_plugins
from ajet_server.build import build_service
from ajet_server.http.app import create_app
from ajet_server.serve import serve
import agentjet, ajet_server.workers.host
build_service(Settings(server={"run_dir": sys.argv[1]}), scripted_plugins())
ours = ("ajet_server.telemetry", "opentelemetry.proto", "opentelemetry.sdk")
print(sorted(name for name in sys.modules if name.startswith(ours)))
"""


@pytest.mark.processes
def test_nothing_is_imported(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_server_without_the_extra_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("ajet_server.telemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.logs.v1.logs_pb2", None)
    settings = Settings(telemetry=TelemetrySettings(enabled=True))
    with pytest.raises(ConfigError, match=r"pip install 'agentjet\[otel\]>=0.1'"):
        telemetry_of(settings, "server")


def test_telemetry_is_off_by_default() -> None:
    assert telemetry_of(Settings(), "server") is None
