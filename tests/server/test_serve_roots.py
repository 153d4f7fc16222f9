"""The model roots of a server, before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_core.errors import ConfigError
from ajet_installation.settings import Settings
from ajet_server.serve import serve


@pytest.mark.parametrize(("name", "wrong"), [("none", "does not exist"), ("file", "is not a dir")])
def test_a_model_root_that_is_no_directory_is_refused(
    tmp_path: Path, name: str, wrong: str
) -> None:
    (tmp_path / "file").touch()
    root = tmp_path / name
    settings = Settings(server={"run_dir": tmp_path / "run", "port": 0, "model_roots": [root]})
    with pytest.raises(ConfigError, match=f"{root} {wrong}"):
        serve(settings)
    assert not (tmp_path / "run").exists()
