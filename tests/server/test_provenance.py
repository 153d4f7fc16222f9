"""With which software a run was served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ajet_core import __version__
from ajet_installation.settings import Settings
from ajet_server.observe.provenance import FILE_NAME, note_provenance, read_provenance


def note(run_dir: Path) -> None:
    """Start a server as far as its provenance is concerned."""
    thread = note_provenance(Settings(server={"run_dir": str(run_dir)}))
    thread.join(60)
    assert not thread.is_alive()


def test_it_is_noted_once_for_as_long_as_nothing_changes(tmp_path: Path) -> None:
    note(tmp_path)
    note(tmp_path)
    (one,) = read_provenance(tmp_path)
    assert one.agentjet == __version__
    assert one.packages["agentjet"] == __version__
    assert one.cpus >= 1
    assert one.memory_bytes > 2**20


def test_a_change_is_another_line_also_after_half_a_line(tmp_path: Path) -> None:
    note(tmp_path)
    file = tmp_path / FILE_NAME
    old = json.loads(file.read_text(encoding="utf-8")) | {"agentjet": "0.0.9"}
    file.write_text(f'{json.dumps(old)}\n{{"at": 17', encoding="utf-8")
    note(tmp_path)
    assert [one.agentjet for one in read_provenance(tmp_path)] == ["0.0.9", __version__]


def test_without_a_directory_the_server_only_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note(tmp_path / "missing")
    assert "does not say with which software" in caplog.text
    assert read_provenance(tmp_path / "missing") == []
