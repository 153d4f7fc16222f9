"""``ajet token``, with a server and without one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli
from ajet_testing.servers import TOKENS, Running, ServerFactory, bearer


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.upper().startswith("AJET_")]:
        monkeypatch.delenv(name)


def ajet(*args: str) -> Result:
    return CliRunner().invoke(cli, ["token", *args])


async def ajet_at(server: Running, *args: str) -> str:
    """What the command says that talks to a running server."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ajet_cli.main",
        "token",
        *args,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "AJET_URL": server.url, "AJET_TOKEN": TOKENS.control},
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


def test_tokens_are_made_listed_and_revoked_without_a_server() -> None:
    made = ajet(
        "create", "--name", "alice", "--expires", "30d", "--max-open", "3", "--run-dir", "r"
    )
    assert made.exit_code == 0, made.output
    assert made.stdout.startswith("ajet-tk-")
    secret = made.stdout.strip().partition(".")[2]
    listed = json.loads(ajet("list", "--run-dir", "r", "--json").stdout)
    assert secret not in json.dumps(listed)
    (info,) = listed
    assert (info["name"], info["scope"], info["quotas"]["open_episodes"]) == ("alice", "client", 3)
    assert info["expires_at"] - info["created_at"] == 30 * 86400
    assert "open_episodes 3" in ajet("list", "--run-dir", "r").stdout
    revoked = ajet("revoke", info["token_id"], "--run-dir", "r")
    assert "revoked" in revoked.stdout
    assert "alice" not in ajet("list", "--run-dir", "r").stdout
    assert "revoked" in ajet("list", "--all", "--run-dir", "r").stdout
    audit = [json.loads(line) for line in Path("r/audit.jsonl").read_text().splitlines()]
    done = [(line["action"], line["id"], line["peer"]) for line in audit]
    assert done == [
        ("token.create", info["token_id"], "this machine"),
        ("token.revoke", info["token_id"], "this machine"),
    ]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["create", "--name", "a b"], "name"),
        (["create", "--name", "a", "--expires", "3y"], "not a duration"),
        (["create", "--name", "a", "--expires", "0d"], "not a duration"),
        (["create", "--name", "a", "--max-open", "0"], "open_episodes"),
        (["create", "--name", "a", "--scope", "root"], "root"),
        (["create", "--name", "a", "--url", "http://127.0.0.1:1"], "cannot be combined"),
        (["revoke", "nope"], "no token 'nope'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(args: list[str], says: str) -> None:
    Path("r").mkdir()
    refused = ajet(*args, "--run-dir", "r")
    assert refused.exit_code == 2
    assert says in refused.output


def test_a_run_directory_that_is_not_there_is_named() -> None:
    refused = ajet("list", "--run-dir", "nowhere")
    assert refused.exit_code == 2
    assert "the run directory nowhere does not exist" in refused.output


async def test_a_running_server_knows_at_once(servers: ServerFactory) -> None:
    async with servers.running() as server:
        secret = (await ajet_at(server, "create", "--name", "alice")).strip()
        status = await server.http.get("/v1/status", headers=bearer(secret))
        assert status.status_code == 200
        (info,) = json.loads(await ajet_at(server, "list", "--json"))
        await ajet_at(server, "revoke", info["token_id"])
        status = await server.http.get("/v1/status", headers=bearer(secret))
        assert status.status_code == 401


async def test_the_run_directory_of_a_running_server_leads_to_the_server(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        note = server.run_dir / "server.json"
        note.write_text(json.dumps({"url": server.url, "pid": os.getpid()}))
        args = ("--run-dir", str(server.run_dir))
        secret = (await ajet_at(server, "create", "--name", "alice", *args)).strip()
        assert server.service.tokens.find(secret) is not None
        assert "alice" in await ajet_at(server, "list", *args)


async def test_tokens_made_at_the_same_time_are_all_there(servers: ServerFactory) -> None:
    async with servers.running() as server:
        names = [f"n{number}" for number in range(12)]
        answers = await asyncio.gather(
            *(
                server.http.post("/v1/tokens", headers=bearer(TOKENS.control), json={"name": name})
                for name in names
            )
        )
        assert {answer.status_code for answer in answers} == {200}
    stored = json.loads((servers.run_dir / "tokens.json").read_text())
    assert sorted(token["name"] for token in stored) == sorted(names)


@pytest.mark.processes
def test_the_command_needs_no_package_of_the_server(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from ajet_cli.main import cli\n"
        f"args = ['token', 'create', '--name', 'a', '--run-dir', {str(tmp_path)!r}]\n"
        "cli(args, standalone_mode=False)\n"
        "heavy = {'starlette', 'uvicorn', 'msgpack', 'tokenizers', 'renderers'}\n"
        "print('imported', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines()[-1] == "imported []", done.stderr
