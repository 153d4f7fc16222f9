"""A run continues only with the model that it began with."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_core.errors import ConfigError
from ajet_core.protocol import ServerState
from ajet_server.run.base_model import NOTE, check_base_model, note_base_model
from ajet_testing.servers import ServerFactory
from tests.support.runs import until_state


def write_model(directory: Path, weights: bytes = b"weights" * 100_000) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text('{"hidden_size": 8}')
    (directory / "model.safetensors").write_bytes(weights)
    return str(directory)


def test_the_same_files_are_the_same_model(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model")
    note_base_model(tmp_path, path)
    # Written again, with the same content.
    write_model(tmp_path / "model")
    check_base_model(tmp_path, path)


@pytest.mark.parametrize(
    "weights",
    [
        b"Weights" + b"weights" * 99_999,
        b"weights" * 99_999 + b"weightS",
        b"weights" * 50_000 + b"Weights" + b"weights" * 49_999,
        b"weights" * 100_001,
    ],
    ids=["beginning", "end", "middle", "size"],
)
def test_other_weights_are_refused(weights: bytes, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model")
    note_base_model(tmp_path, path)
    write_model(tmp_path / "model", weights)
    with pytest.raises(ConfigError, match="not the one with which the run") as refused:
        check_base_model(tmp_path, path)
    assert refused.value.param == "model.path"


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model")
    note_base_model(tmp_path, path)
    (tmp_path / "model" / "config.json").write_text('{"hidden_size": 16}')
    with pytest.raises(ConfigError, match="another --run-dir"):
        check_base_model(tmp_path, path)


def test_a_run_without_a_readable_note_is_not_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model")
    check_base_model(tmp_path, path)
    (tmp_path / NOTE).write_bytes(b"\xff")
    check_base_model(tmp_path, path)


def test_a_directory_without_weights_is_not_compared(tmp_path: Path) -> None:
    note_base_model(tmp_path, str(tmp_path / "none"))
    check_base_model(tmp_path, write_model(tmp_path / "model"))


async def test_a_server_refuses_a_model_that_was_written_again(servers: ServerFactory) -> None:
    weights = servers.model_dir / "model.safetensors"
    before = weights.read_bytes()
    async with servers.running() as server:
        await server.roll(steps=1)
        await server.batch()
        await until_state(server, ServerState.OFFLINE)
    weights.write_bytes(b"other")
    try:
        async with servers.running() as server:
            refused = await server.put_run()
            assert refused.status_code == 400
            assert "not the one with which the run" in refused.json()["error"]["message"]
            weights.write_bytes(before)
            assert (await server.put_run(steps=2)).status_code == 200
    finally:
        weights.write_bytes(before)
