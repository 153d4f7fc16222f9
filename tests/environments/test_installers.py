"""What installs, and that uv takes packages from where pip is configured to."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ajet_core.errors import BackendEnvironmentError, ConfigError
from ajet_installation import installers
from ajet_installation.installers import (
    PIP,
    configuration_from,
    find_installer,
    pip_configuration,
    uv_settings,
)

PYTHON = Path(sys.executable)


@pytest.fixture(autouse=True)
def _unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def test_a_variable_counts_before_a_file_and_the_command_before_all_commands() -> None:
    listed = (
        "global.find-links='/all'\ninstall.find-links='/install'\n:env:.find-links='/variable'\n"
        "global.timeout='10'\ninstall.timeout='20'\ndownload.timeout='30'\n"
        "global.extra-index-url='\\nfile:///one\\nfile:///two'\n"
    )
    assert configuration_from(listed) == {
        "find-links": "/variable",
        "timeout": "20",
        "extra-index-url": "\nfile:///one\nfile:///two",
    }


def test_uv_is_told_where_packages_are() -> None:
    configured = {
        "index-url": "https://me:secret@house/simple",
        "extra-index-url": "\nfile:///one\nfile:///two",
        "find-links": "/a /b",
        "constraint": "/pins.txt",
        "cert": "/etc/house.pem",
        "no-index": "1",
        "pre": "false",
        "retries": "3",
    }
    options, variables, left = uv_settings(configured, {})
    # Commands are logged: no address is an option.
    links = ["--find-links", "/a", "--find-links", "/b"]
    assert options == [*links, "--constraint", "/pins.txt", "--no-index"]
    assert variables == {
        # The first counts most; that of pip's own configuration before the extra ones.
        "UV_INDEX": "https://me:secret@house/simple file:///one",
        "UV_DEFAULT_INDEX": "file:///two",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/etc/house.pem",
    }
    assert left == []


def test_what_holds_a_password_and_cannot_be_a_variable_is_left_to_pip() -> None:
    _, _, left = uv_settings({"find-links": "https://me:secret@house/wheels"}, {})
    assert left == ["find-links"]


def test_one_index_is_the_default_one() -> None:
    options, variables, left = uv_settings({"index-url": "https://house/simple"}, {})
    assert (options, left) == ([], [])
    assert variables == {
        "UV_DEFAULT_INDEX": "https://house/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


@pytest.mark.processes
def test_pips_own_index_is_found_for_extra_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///one")
    variables = find_installer("uv", PYTHON).variables
    assert variables["UV_INDEX"].endswith("/simple")
    assert variables["UV_DEFAULT_INDEX"] == "file:///one"


def test_what_uv_itself_was_told_stands() -> None:
    configured = {"index-url": "https://house/simple", "timeout": "10", "cert": "/etc/house.pem"}
    environ = {"UV_INDEX_URL": "https://other/simple", "UV_HTTP_TIMEOUT": "5"}
    assert uv_settings(configured, environ) == ([], {"SSL_CERT_FILE": "/etc/house.pem"}, [])


def test_nothing_is_said_of_indexes_where_none_is_configured() -> None:
    assert uv_settings({"timeout": "10"}, {}) == ([], {"UV_HTTP_TIMEOUT": "10"}, [])


@pytest.mark.processes
def test_uv_is_taken_if_it_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_installer(None, PYTHON)
    assert (found.name, found.why) == ("uv", "")
    assert found.install(Path("/somewhere/python"))[-2:] == ["--python", "/somewhere/python"]
    monkeypatch.setattr(installers, "_uv", lambda: None)
    assert find_installer(None, PYTHON) is PIP
    with pytest.raises(ConfigError, match="uv is not installed"):
        find_installer("uv", PYTHON)


@pytest.mark.processes
def test_what_cannot_be_said_to_uv_is_left_to_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_REQUIRE_HASHES", "1")
    found = find_installer(None, PYTHON)
    assert found.name == "pip"
    assert "require-hashes" in found.why
    with pytest.raises(ConfigError, match="require-hashes"):
        find_installer("uv", PYTHON)
    monkeypatch.setenv("PIP_REQUIRE_HASHES", "0")
    assert find_installer(None, PYTHON).name == "uv"


@pytest.mark.processes
def test_a_pip_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BackendEnvironmentError, match="the configuration of pip"):
        pip_configuration(tmp_path / "no-python")
