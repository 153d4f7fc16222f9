"""`ajet assist install` adds to a project and takes nothing from it."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("mcp")
pytest.importorskip("tomlkit")

from ajet_cli.assist import skills as kept_skills
from ajet_cli.main import cli

ALL = "claude,codex,cursor,opencode"
OPTIONS = ["-P", "-m", "ajet_cli.main", "mcp"]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AJET_URL", "AJET_CONFIG", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project


def install(*options: str, names: str = ALL) -> Result:
    return CliRunner().invoke(cli, ["assist", "install", "--for", names, *options])


def files(project: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(project)): path.read_bytes()
        for path in sorted(project.rglob("*"))
        if path.is_file()
    }


def test_each_assistant_gets_its_form_of_the_entry(project: Path) -> None:
    done = install()
    assert done.exit_code == 0, done.output
    command = sys.executable
    split = {"command": command, "args": OPTIONS}
    assert json.loads((project / ".mcp.json").read_text()) == {
        "mcpServers": {"agentjet": {"type": "stdio", **split}}
    }
    assert json.loads((project / ".cursor/mcp.json").read_text()) == {
        "mcpServers": {"agentjet": split}
    }
    codex = tomllib.loads((project / ".codex/config.toml").read_text())["mcp_servers"]["agentjet"]
    assert {key: codex[key] for key in split} == split
    assert codex["default_tools_approval_mode"] == "approve"
    opencode = json.loads((project / "opencode.json").read_text())
    assert opencode["mcp"]["agentjet"]["command"] == [command, *OPTIONS]
    assert opencode["permission"] == {"agentjet_*": "allow", "doom_loop": "allow"}
    assert Path(command).is_absolute()
    for folder in (".claude/skills", ".agents/skills"):
        names = {path.parent.name for path in (project / folder).glob("*/SKILL.md")}
        assert names == set(kept_skills.skills())
    assert "swarm_status" in (project / "AGENTS.md").read_text()


def test_a_second_run_changes_nothing(project: Path) -> None:
    install()
    before = files(project)
    assert "current" in install().output
    assert files(project) == before
    assert install("--check").exit_code == 0


def test_nothing_is_written_by_check_and_print(project: Path) -> None:
    checked = install("--check", "--json")
    assert checked.exit_code == 1
    assert {file["state"] for file in json.loads(checked.output)["files"]} == {"missing"}
    printed = install("--print")
    assert printed.exit_code == 0
    assert "[mcp_servers.agentjet]" in printed.output
    assert files(project) == {}


def test_other_content_stays(project: Path) -> None:
    (project / ".codex").mkdir()
    kept = {
        ".mcp.json": b'{\n\t"mcpServers": {"other": {"command": "x"}}\n}',
        "opencode.json": b'{ // mine\n  "permission": {"*": "ask", "doom_loop": "deny"}, }\n',
        ".codex/config.toml": b"# mine\nmodel = 'x'   # why\n",
        "AGENTS.md": "# Règles\n\nDo not break things.".encode(),
    }
    for name, content in kept.items():
        (project / name).write_bytes(content)
    (project / ".mcp.json").chmod(0o600)
    done = install()
    assert done.exit_code == 0, done.output
    for name, content in kept.items():
        rest = iter((project / name).read_bytes())
        assert all(byte in rest for byte in content), name
    assert (project / "AGENTS.md").read_bytes().startswith(kept["AGENTS.md"])
    assert (project / ".mcp.json").stat().st_mode & 0o777 == 0o600
    opencode = (project / "opencode.json").read_text()
    assert '"doom_loop": "deny"' in opencode


def test_stale_entries_are_updated_alone(project: Path) -> None:
    install()
    path = project / ".mcp.json"
    entry = json.loads(path.read_text())
    entry["mcpServers"]["agentjet"] |= {"command": "/gone/python", "mine": [1]}
    path.write_text(json.dumps(entry))
    checked = install("--check")
    assert checked.exit_code == 1
    assert ".mcp.json: stale" in checked.output
    assert checked.output.count("stale") == 1
    assert install().exit_code == 0
    after = json.loads(path.read_text())["mcpServers"]["agentjet"]
    assert after == {"type": "stdio", "command": sys.executable, "args": OPTIONS, "mine": [1]}


def test_stricter_choices_in_an_opencode_entry_stay(project: Path) -> None:
    install(names="opencode")
    path = project / "opencode.json"
    data = json.loads(path.read_text())
    chosen = {"enabled": False, "timeout": 120_000}
    data["mcp"]["agentjet"] |= {**chosen, "command": ["/gone", *OPTIONS]}
    data["permission"] = {"agentjet_*": "ask", "doom_loop": "ask"}
    path.write_text(json.dumps(data))
    assert install("--url", "http://gpu:8642", names="opencode").exit_code == 0
    after = json.loads(path.read_text())
    assert after["permission"] == {"agentjet_*": "ask", "doom_loop": "ask"}
    assert after["mcp"]["agentjet"] == {
        "type": "local",
        "command": [sys.executable, *OPTIONS],
        "environment": {"AJET_URL": "http://gpu:8642"},
        **chosen,
    }


def test_a_permission_for_one_tool_is_not_overridden(project: Path) -> None:
    path = project / "opencode.json"
    path.write_text('{"permission": {"agentjet_swarm_stop": "ask"}}')
    assert install(names="opencode").exit_code == 0
    permission = json.loads(path.read_text())["permission"]
    assert permission == {"agentjet_swarm_stop": "ask", "doom_loop": "allow"}


@pytest.mark.parametrize(
    ("passed", "after"),
    [
        ('["CORP_PROXY"]', ["CORP_PROXY", "AJET_TOKEN"]),
        ('["AJET_TOKEN", "CORP_PROXY"]', ["AJET_TOKEN", "CORP_PROXY"]),
        (
            '["CORP_PROXY", { name = "AJET_TOKEN", source = "local" }]',
            ["CORP_PROXY", {"name": "AJET_TOKEN", "source": "local"}],
        ),
    ],
    ids=["added", "there", "table"],
)
def test_stricter_choices_in_a_codex_entry_stay(
    project: Path, passed: str, after: list[object]
) -> None:
    path = project / ".codex/config.toml"
    path.parent.mkdir()
    path.write_text(
        f"""[mcp_servers.agentjet]
command = "/gone/python"
args = ["-m", "ajet_cli.main", "mcp"]
default_tools_approval_mode = "prompt"
tool_timeout_sec = 10  # mine
env_vars = {passed}
env = {{ AJET_URL = "http://old:8642", MINE = "1" }}
"""
    )
    assert install("--url", "http://gpu:8642", names="codex").exit_code == 0
    assert "10  # mine" in path.read_text()
    assert tomllib.loads(path.read_text())["mcp_servers"]["agentjet"] == {
        "command": sys.executable,
        "args": OPTIONS,
        "default_tools_approval_mode": "prompt",
        "startup_timeout_sec": 60,
        "tool_timeout_sec": 10,
        "env_vars": after,
        "env": {"AJET_URL": "http://gpu:8642", "MINE": "1"},
    }
    assert install("--check", "--url", "http://gpu:8642", names="codex").exit_code == 0


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (".mcp.json", b"{", "line 1"),
        (".mcp.json", b"\xff", "UTF-8"),
        (".mcp.json", b'{"mcpServers": []}', "mcpServers is not an object"),
        (".mcp.json", b'{"mcpServers": {"agentjet": {"command": "x"}}}', "another program"),
        (".mcp.json", b'{"mcpServers": {"agentjet": {"args": 5}}}', "another program"),
        ("opencode.json", b'["x"]', "not an object"),
        (".codex/config.toml", b"a = = 1", "line 1"),
        (".codex/config.toml", b"mcp_servers = 1", "mcp_servers is not a table"),
        ("AGENTS.md", b"<!-- agentjet: begin -->", "exactly one"),
    ],
    ids=range(9),
)
def test_a_file_that_cannot_be_changed_is_refused_and_nothing_is_written(
    project: Path, name: str, content: bytes, says: str
) -> None:
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_bytes(content)
    done = install()
    assert done.exit_code == 2
    assert f"{name}: " in done.output
    assert says in done.output
    assert files(project) == {name: content}


@pytest.mark.parametrize("link", [".mcp.json", ".claude", "AGENTS.md"])
def test_links_out_of_the_project_are_not_followed(
    project: Path, tmp_path: Path, link: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target = outside if link == ".claude" else outside / "file"
    (project / link).symlink_to(target)
    done = install()
    assert done.exit_code == 2
    assert "leads out of the project" in done.output
    assert list(outside.iterdir()) == []


def test_links_inside_the_project_stay_links(project: Path) -> None:
    (project / "config").mkdir()
    (project / "config/servers.json").write_text("{}")
    (project / ".mcp.json").symlink_to("config/servers.json")
    assert install(names="claude").exit_code == 0
    assert (project / ".mcp.json").is_symlink()
    assert "agentjet" in (project / "config/servers.json").read_text()


def test_skills_that_the_user_edited_stay_and_older_ones_are_updated(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(names="claude")
    edited = project / ".claude/skills/agentjet-train/SKILL.md"
    edited.write_text(edited.read_text().replace("agentjet", "AgentJet", 3))
    mine = edited.read_text()
    older = project / ".claude/skills/agentjet-debug/SKILL.md"
    older.write_text(kept_skills.marked("---\nname: agentjet-debug\n---\nOld."))
    done = install(names="claude")
    assert done.exit_code == 0
    assert edited.read_text() == mine
    assert "kept, because it was edited" in done.output
    assert older.read_text() == kept_skills.marked(kept_skills.skills()["agentjet-debug"])
    assert install("--check", names="claude").exit_code == 0


def test_the_section_is_replaced_where_it_is(project: Path) -> None:
    install(names="claude")
    path = project / "AGENTS.md"
    text = path.read_text()
    path.write_text(f"# Before\n{text.replace('swarm_wait', 'old')}After\n")
    install(names="claude")
    assert path.read_text() == f"# Before\n{text}After\n"


def test_options_reach_the_entry_and_no_token_does(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AJET_TOKEN", "my-secret")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert install("--read-only", "--url", "http://gpu:8642").exit_code == 0
    entry = json.loads((project / ".mcp.json").read_text())["mcpServers"]["agentjet"]
    assert entry["args"] == [*OPTIONS, "--read-only"]
    assert entry["env"] == {"AJET_URL": "http://gpu:8642", "XDG_STATE_HOME": "/state"}
    assert not [name for name, content in files(project).items() if b"my-secret" in content]


def test_the_place_of_studies_reaches_the_entry(project: Path) -> None:
    assert install("--on", "hosts.toml").exit_code == 2
    places = project / "hosts.toml"
    places.write_text('[ssh]\nhosts = ["node1"]\n')
    assert install("--on", "hosts.toml", names="claude").exit_code == 0
    entry = json.loads((project / ".mcp.json").read_text())["mcpServers"]["agentjet"]
    assert entry["args"] == [*OPTIONS, "--on", str(places.resolve())]


def test_a_commented_configuration_of_opencode_is_used(project: Path) -> None:
    (project / "opencode.jsonc").write_text("{ /* mine */ }")
    assert install(names="opencode").exit_code == 0
    assert not (project / "opencode.json").exists()
    assert "/* mine */" in (project / "opencode.jsonc").read_text()


def test_an_unknown_assistant_is_refused(project: Path) -> None:
    done = install(names="claude,clippy")
    assert done.exit_code == 2
    assert "'clippy'" in done.output
    assert files(project) == {}
