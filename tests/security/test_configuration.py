"""Run configurations and model directories that try to connect, run code or read files."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import ConfigError
from ajet_core.protocol import ModelConfig, RunConfig
from ajet_installation.settings import Settings
from ajet_server.gateway.rendering.factory import make_renderer
from ajet_server.run.run_setup import resolve_run
from ajet_testing.plugins import scripted_plugins
from ajet_testing.servers import CONTROL, Running, error_of
from tests.security.booby_trap import Evil, booby_trapped
from tests.security.outside import watched

_PLACES = [
    "http://169.254.169.254/latest/meta-data/",
    "https://evil.example/model",
    "file:///etc/passwd",
    "s3://bucket/model",
    "hf://org/model",
    "Qwen/Qwen2.5-0.5B",
    "org/model@main",
    "\\\\evil.example\\share",
    "//evil.example/share",
    "~root",
    "$HOME",
    "/etc",
    "/proc/self/root/etc",
    "/proc/self/cwd",
    "../../../../etc",
    "a\x00b",
    "x/" * 2000,
    "x" * 4096,
    ".",
    "..",
]


@pytest.mark.parametrize("place", _PLACES)
async def test_a_model_is_a_local_directory_and_nothing_is_fetched(
    server: Running, place: str
) -> None:
    with watched() as attempts:
        answer = await server.put_run(model={"path": place, "renderer": "qwen3"})
    assert answer.status_code == 400, answer.text
    assert error_of(answer)["param"] == "model.path"
    assert len(answer.text) < 2000
    assert attempts == []


@pytest.mark.parametrize("place", _PLACES)
async def test_a_second_model_of_a_component_is_held_to_the_same_rules(
    server: Running, place: str
) -> None:
    with watched() as attempts:
        answer = await server.put_run(trainer={"teacher": place})
    assert answer.status_code == 400, answer.text
    assert error_of(answer)["type"] == "invalid_model"
    assert error_of(answer)["param"] == "trainer.settings.teacher"
    assert attempts == []


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"url": "http://169.254.169.254/"}},
        {"engine": {"base_url": "http://169.254.169.254/"}},
        {"trainer": {"script": "/bin/sh"}},
        {"trainer": {"settings": {"__class__": "os.system"}}},
        {"merger": {"name": "trie", "settings": {"path": "/etc/passwd"}}},
        {"merger": {"name": "trie", "settings": {"policy": "/etc/passwd"}}},
        {"merger": {"name": "http://evil.example/merger"}},
        {"merger": {"name": "os:system"}},
        {"merger": {"name": "../../evil"}},
    ],
)
async def test_settings_that_are_no_components_own_are_refused(
    server: Running, changes: dict[str, Any]
) -> None:
    with watched() as attempts:
        answer = await server.put_run(**changes)
    assert answer.status_code == 400, answer.text
    assert attempts == []


_HUGE = 10**30


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": _HUGE},
        {"checkpoint_every": _HUGE},
        {"batch": {"tasks": _HUGE}},
        {"algorithm": {"warmup_steps": _HUGE}},
        {"algorithm": {"minibatches": _HUGE}},
        {"timelines": {"max_tokens": _HUGE}},
        {"engine": {"vocab_size": _HUGE}},
        {"engine": {"reply_ids": [_HUGE]}},
        {"trainer": {"dies_at": _HUGE}},
        {"trainer": {"dies_at": -1}},
    ],
)
async def test_numbers_that_no_worker_could_take_are_refused(
    server: Running, changes: dict[str, Any]
) -> None:
    answer = await server.put_run(**changes)
    assert answer.status_code == 400, answer.text
    config = server.config()
    config["model"]["max_context"] = _HUGE
    answer = await server.http.put("/v1/run", headers=CONTROL, json=config)
    assert answer.status_code == 400, answer.text


async def test_a_name_of_the_model_is_only_a_name(server: Running) -> None:
    model = {"path": str(server.model_dir), "renderer": "qwen3", "name": "../../../tmp/evil"}
    await server.roll(model=model)
    await server.batch()
    answer = await server.http.post("/v1/run/stop", headers=CONTROL)
    export = Path(answer.json()["export_dir"])
    assert export.resolve().is_relative_to(server.run_dir.resolve())


# --- Links ----------------------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "elsewhere" / "secret.json"
    file.parent.mkdir()
    file.write_text('{"password": "hunter2"}')
    return file


def copied(server: Running, name: str = "model") -> Path:
    """A copy of the model inside the run directory."""
    return Path(shutil.copytree(server.model_dir, server.run_dir / name))


async def test_a_directory_that_is_a_link_out_of_the_roots_is_refused(
    server: Running, secret: Path
) -> None:
    (server.run_dir / "link").symlink_to(secret.parent)
    answer = await server.put_run(model={"path": "link", "renderer": "qwen3"})
    assert error_of(answer)["type"] == "invalid_model"
    assert "outside" in error_of(answer)["message"]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "extra"])
async def test_a_file_that_is_a_link_out_of_the_roots_is_refused(
    server: Running, secret: Path, name: str
) -> None:
    directory = copied(server)
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to(secret)
    answer = await server.put_run(model={"path": "model", "renderer": "qwen3"})
    assert error_of(answer)["type"] == "invalid_model"
    assert name in error_of(answer)["message"]
    assert "hunter2" not in answer.text


async def test_a_second_model_with_a_link_out_of_the_roots_is_refused(
    server: Running, secret: Path
) -> None:
    directory = copied(server, "teacher")
    (directory / "model.safetensors").unlink(missing_ok=True)
    (directory / "model.safetensors").symlink_to(secret)
    answer = await server.put_run(trainer={"teacher": "teacher"})
    assert error_of(answer)["param"] == "trainer.settings.teacher"
    assert "model.safetensors" in error_of(answer)["message"]


async def test_a_component_is_given_the_absolute_path_of_its_second_model(server: Running) -> None:
    directory = copied(server, "teacher")
    config = RunConfig.model_validate(server.config(trainer={"teacher": "teacher"}))
    roots = [server.model_dir.parent]
    settings = Settings(server={"run_dir": server.run_dir, "model_roots": roots})
    run = resolve_run("run", config, settings, scripted_plugins())
    assert run.trainer.settings["teacher"] == str(directory.resolve())
    assert (await server.put_run(trainer={"teacher": "teacher"})).status_code == 200


async def test_a_link_within_the_roots_is_followed(server: Running) -> None:
    directory = copied(server)
    blob = server.run_dir / "blobs" / "0123"
    blob.parent.mkdir()
    (directory / "tokenizer.json").rename(blob)
    (directory / "tokenizer.json").symlink_to("../blobs/0123")
    answer = await server.put_run(model={"path": "model", "renderer": "qwen3"})
    assert answer.status_code == 200, answer.text


async def test_a_loop_of_links_is_refused(server: Running) -> None:
    (server.run_dir / "a").symlink_to("b")
    (server.run_dir / "b").symlink_to("a")
    answer = await server.put_run(model={"path": "a", "renderer": "qwen3"})
    assert answer.status_code == 400, answer.text


# --- Code in files --------------------------------------------------------------------------------


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that is there once somebody's code has run."""
    return tmp_path / "code-has-run"


@pytest.mark.parametrize("renderer", ["qwen3", "auto", "default"])
@pytest.mark.parametrize("tokenizer", ["fast", "slow"])
async def test_code_in_a_model_directory_is_not_run(
    server: Running, marker: Path, renderer: str, tokenizer: str
) -> None:
    directory = booby_trapped(copied(server), marker)
    if tokenizer == "slow":
        (directory / "tokenizer.json").unlink()
        (directory / "tokenizer.model").write_bytes(pickle.dumps(Evil(marker)))
    with watched() as attempts:
        answer = await server.put_run(model={"path": "model", "renderer": renderer})
    assert answer.status_code in (200, 400), answer.text
    assert not marker.exists()
    assert attempts == []


async def test_pickled_weights_are_refused_by_name(server: Running, marker: Path) -> None:
    directory = booby_trapped(copied(server), marker)
    (directory / "model.safetensors").unlink()
    answer = await server.put_run(model={"path": "model", "renderer": "qwen3"})
    assert answer.status_code == 400
    assert "safetensors" in error_of(answer)["message"]
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "[]",
        "\x00",
        '{"model_type": 7}',
        '{"chat_template": [{"name": 1}]}',
        '{"model_type": "../../evil"}',
        '{"model_type": "qwen2", "vocab_size": 1e308}',
    ],
)
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
async def test_a_broken_file_of_a_model_is_the_models_fault(
    server: Running, name: str, content: str
) -> None:
    directory = copied(server)
    (directory / name).write_text(content)
    for renderer in ("qwen3", "auto", "default"):
        answer = await server.put_run(model={"path": "model", "renderer": renderer})
        assert answer.status_code in (200, 400), answer.text
        assert len(answer.text) < 5000


# --- Templates ------------------------------------------------------------------------------------

_ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch MARKER') }}",
    "{{ lipsum.__globals__['os'].popen('touch MARKER').read() }}",
    "{{ self.__init__.__globals__ }}",
    "{{ (messages|attr('append'))(1) }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ '%s'|format(messages.__class__) }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{% import '/etc/passwd' as x %}{{ x }}",
    "{% include '/etc/passwd' %}",
    "{{ range(10**9)|list }}",
    "{{ raise_exception('no') }}",
    "{{ 1/0 }}",
    "{{ nothing.at.all }}",
    "{% for",
]


@pytest.mark.parametrize("template", _ESCAPES)
async def test_a_template_does_not_get_out_of_its_sandbox(
    server: Running, marker: Path, template: str
) -> None:
    directory = copied(server)
    text = template.replace("MARKER", str(marker))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": text})
    )
    with watched() as attempts:
        answer = await server.put_run(model={"path": "model", "renderer": "default"})
        if answer.status_code == 200:
            (
                await server.http.post("/v1/run/start", headers=CONTROL, json={"wait_seconds": 60})
            ).raise_for_status()
            attempts.clear()  # the worker that was started
            said = await server.chat(await server.claim())
            assert said.status_code in (200, 400), said.text
            assert "root:" not in said.text
            assert "<class" not in said.text
    assert not marker.exists()
    assert attempts == []


# --- Settings files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"a: &a [x,x]\nb: &b [*a,*a]\n",
        b"!!python/object/apply:os.system ['touch MARKER']",
        b"cos\nsystem\n(S'touch MARKER'\ntR.",
        b"x = " + b"[" * 100_000,
        b"x = '" + b"\x00" + b"'",
        b"\xff\xfe",
        b"[server]\nport = " + b"9" * 10_000,
        b"[server]\nrun_dir = 7",
    ],
)
def test_a_settings_file_that_is_no_toml_is_refused_and_nothing_runs(
    tmp_path: Path, marker: Path, content: bytes
) -> None:
    path = tmp_path / "ajet.toml"
    path.write_bytes(content.replace(b"MARKER", str(marker).encode()))
    with watched() as attempts, pytest.raises(ConfigError):
        Settings(config=path)
    assert attempts == []
    assert not marker.exists()


def test_a_configuration_has_no_field_for_code() -> None:
    fields = json.dumps(RunConfig.model_json_schema()["properties"])
    for word in ("import", "python", "module", "command", "url", "trust_remote_code"):
        assert f'"{word}"' not in fields


def test_a_renderer_that_imports_code_is_not_offered(model_dir: Path) -> None:
    model = ModelConfig(path=str(model_dir), renderer="custom")
    with pytest.raises(ConfigError, match="unknown renderer"):
        make_renderer(model, model_dir)


async def test_a_chat_template_that_is_no_text_is_the_models_fault(server: Running) -> None:
    (copied(server) / "chat_template.jinja").write_bytes(b"\xff\xfe\x00")
    for renderer in ("qwen3", "auto", "default"):
        answer = await server.put_run(model={"path": "model", "renderer": renderer})
        assert answer.status_code in (200, 400), answer.text
