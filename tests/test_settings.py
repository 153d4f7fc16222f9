"""Settings: which source wins, what is refused, and what the refusal says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import ConfigError
from ajet_installation.settings import ServerSettings, SettingOrigin, Settings


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.upper().startswith("AJET_")]:
        monkeypatch.delenv(name)


def toml(text: str, name: str = "ajet.toml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def origin(settings: Settings, key: str) -> SettingOrigin:
    return next(found for found in settings.explain() if found.key == key)


def refusal(**flags: Any) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        Settings(**flags)
    return raised.value


def test_the_defaults_are_those_of_a_local_server() -> None:
    settings = Settings()
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8642)
    assert settings.server.run_dir == Path("runs/default")
    assert (settings.store.name, settings.loggers) == ("sqlite", {})


def test_the_file_of_the_working_directory_overrides_defaults() -> None:
    toml("[server]\nport = 9000\n")
    settings = Settings()
    assert settings.server.port == 9000
    assert origin(settings, "server.port").source == "ajet.toml"
    assert origin(settings, "server.host").source == "default"


def test_the_environment_overrides_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    toml("[server]\nport = 9000\nlog_level = 'debug'\n")
    monkeypatch.setenv("AJET_SERVER__PORT", "9001")
    settings = Settings()
    assert (settings.server.port, settings.server.log_level) == (9001, "debug")
    assert origin(settings, "server.port").source == "AJET_SERVER__PORT"


def test_flags_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_SERVER__PORT", "9001")
    settings = Settings(server={"port": 9002})
    assert settings.server.port == 9002
    assert origin(settings, "server.port").source == "command line"


def test_a_section_given_as_a_model_overrides_only_what_it_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AJET_SERVER__LOG_LEVEL", "debug")
    settings = Settings(server=ServerSettings(port=0))
    assert (settings.server.port, settings.server.log_level) == (0, "debug")


def test_another_file_can_be_named_by_flag_and_by_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    toml("[server]\nport = 1\n")
    toml("[server]\nport = 2\n", "two.toml")
    toml("[server]\nport = 3\n", "three.toml")
    monkeypatch.setenv("AJET_CONFIG", "two.toml")
    assert Settings().server.port == 2
    settings = Settings(config=Path("three.toml"))
    assert settings.server.port == 3
    assert origin(settings, "server.port").source == "three.toml"


def test_lists_and_tables_in_the_environment_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_PLUGINS__BLOCKED", '["a", "b"]')
    monkeypatch.setenv("AJET_STORE", '{"settings": {"quota": 5}}')
    settings = Settings()
    assert settings.plugins.blocked == ["a", "b"]
    assert settings.store.settings == {"quota": 5}
    assert origin(settings, "store.settings.quota").source == "AJET_STORE"


def test_clients_have_short_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_URL", "http://here:1")
    monkeypatch.setenv("AJET_TOKEN", "hush")
    settings = Settings()
    assert settings.client.url == "http://here:1"
    assert settings.client.token is not None
    assert settings.client.token.get_secret_value() == "hush"
    assert origin(settings, "client.token").source == "AJET_TOKEN"


def test_every_key_is_explained_once() -> None:
    keys = [found.key for found in Settings().explain()]
    assert len(keys) == len(set(keys))
    assert {"server.tls_cert", "workers.python", "loggers", "client.token"} <= set(keys)


def test_secrets_are_masked_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_SERVER__CONTROL_TOKEN", "hush1")
    settings = Settings(
        client={"token": "hush2"}, store={"settings": {"db": {"password": "hush3"}}}
    )
    assert "hush" not in repr([found.value for found in settings.explain()])
    assert origin(settings, "store.settings.db.password").value == "**********"
    assert "hush1" not in repr(settings)
    assert "hush2" not in repr(settings)


def test_an_unknown_key_of_the_file_lists_the_known_ones() -> None:
    toml("[server]\nprot = 1\n")
    error = refusal()
    assert error.message.startswith(
        "ajet.toml: server.prot: unknown key (did you mean 'port'?) (known keys: host, port,"
    )
    assert error.param == "server.prot"


def test_an_unknown_section_lists_the_known_ones() -> None:
    toml("[sever]\nport = 1\n")
    message = refusal().message
    assert "ajet.toml: sever: unknown key (did you mean 'server'?) (known keys: config" in message


def test_an_unknown_key_of_the_environment_names_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AJET_SERVER__PROT", "1")
    assert refusal().message.startswith("AJET_SERVER__PROT: server.prot: unknown key")


@pytest.mark.parametrize("name", ["AJET_SERVER_PORT", "AJET_SEVER__PORT"])
def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    error = refusal()
    assert f"{name} does not name a setting" in error.message
    assert "AJET_SERVER__PORT" in error.message


def test_a_variable_that_does_not_look_like_a_setting_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AJET_SOMETHING", "1")
    assert Settings().server.port == 8642


def test_a_value_that_should_be_json_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_PLUGINS__BLOCKED", "torch")
    assert "AJET_PLUGINS__BLOCKED: the value must be JSON" in refusal().message


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[server]\nport = 'many'\n", "server.port"),
        ("[server]\nport = 70000\n", "server.port"),
        ("[server]\ncall_deadline_seconds = 0\n", "server.call_deadline_seconds"),
        ("[server]\ncall_deadline_seconds = inf\n", "server.call_deadline_seconds"),
        ("[server]\nlog_level = 'loud'\n", "server.log_level"),
        ("server = 3\n", "server"),
        ("loggers = 'jsonl'\n", "loggers"),
    ],
)
def test_a_wrong_value_names_file_and_key(text: str, key: str) -> None:
    toml(text)
    error = refusal()
    assert error.message.startswith(f"ajet.toml: {key}: ")
    assert error.param == key


def test_a_refused_secret_is_not_shown() -> None:
    assert "hush" not in refusal(server={"control_token": ["hush"]}).message


def test_bad_toml_names_file_and_place() -> None:
    toml("[server\n")
    assert "ajet.toml is not valid TOML" in refusal().message
    assert "line 1" in refusal().message


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a = " + b"[" * 100_000])
def test_a_file_that_is_not_text_or_nests_without_end_is_refused(content: bytes) -> None:
    Path("ajet.toml").write_bytes(content)
    assert "ajet.toml is not valid TOML" in refusal().message


def test_a_named_file_must_exist() -> None:
    error = refusal(config=Path("nowhere.toml"))
    assert "nowhere.toml: cannot be read: No such file" in error.message


def test_a_file_cannot_name_another_one() -> None:
    toml("config = 'two.toml'\n")
    assert refusal().param == "config"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_an_open_address_needs_protection_and_the_refusal_says_which(host: str) -> None:
    message = refusal(server={"host": host}).message
    assert "tls_cert" in message
    assert "--insecure" in message


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_a_loopback_address_needs_none(host: str) -> None:
    assert Settings(server={"host": host}).server.host == host


@pytest.mark.parametrize(
    "protection", [{"insecure": True}, {"tls_cert": "c.pem", "tls_key": "k.pem"}]
)
def test_a_protected_open_address_is_accepted(protection: dict[str, Any]) -> None:
    assert Settings(server={"host": "0.0.0.0", **protection}).server.host == "0.0.0.0"


def test_half_of_a_certificate_is_refused() -> None:
    assert "together" in refusal(server={"tls_cert": "c.pem"}).message


def test_a_faulty_section_names_all_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    toml("[server]\nhost = '0.0.0.0'\n")
    monkeypatch.setenv("AJET_SERVER__PORT", "1")
    assert refusal().message.startswith("ajet.toml, AJET_SERVER__PORT: server: host '0.0.0.0'")
