"""The client where Python lacks what Windows lacks, and where uvloop is not installed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ajet_testing.servers import TOKENS, Running

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
WITHOUT_POSIX = ROOT / "tests" / "support" / "without_posix.py"
# The commands are those that need no package but agentjet's own.
IMPORTS = """
    import importlib, pkgutil
    from ajet_cli.main import BUILT_IN

    for root in ("agentjet", "ajet_core", "ajet_installation", "ajet_training", "ajet_worlds"):
        package = importlib.import_module(root)
        for module in pkgutil.walk_packages(package.__path__, f"{root}."):
            importlib.import_module(module.name)
    for target, _ in BUILT_IN.values():
        importlib.import_module(target.partition(":")[0])
    print("imported")
"""
TRAINS = """
    import sys
    import httpx2
    from agentjet import SwarmClient

    def agent(task, episode):
        question = {"model": episode.model, "messages": [{"role": "user", "content": task.id}]}
        headers = {"authorization": f"Bearer {episode.api_key}"}
        url = f"{episode.base_url}/chat/completions"
        httpx2.post(url, json=question, headers=headers).raise_for_status()
        return float(task.id == "a")

    with SwarmClient(*sys.argv[1:]) as client:
        report = client.run_episodes_until_all_complete(["a", "b"], agent, episodes_per_task=2)
        client.wait_for_step(1)
        print(len(report.outcomes), client.status().step)
"""
AJET = """
    from ajet_cli.main import main

    main()
"""


async def run(program: str, directory: Path, *arguments: str) -> tuple[str, str]:
    """The output of a program, and its errors."""
    file = directory / "program.py"
    file.write_text(textwrap.dedent(program))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(WITHOUT_POSIX), str(file), *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=directory,
        env={
            "PYTHONPATH": str(ROOT),
            "HOME": str(directory),
            # Looking at those of this checkout needs processes of the real system.
            "AJET_WORKERS__ENVIRONMENTS": str(directory / "environments"),
        },
    )
    output, errors = await process.communicate()
    return output.decode(), errors.decode()


@pytest.mark.processes
async def test_a_client_imports_nothing_that_windows_lacks(tmp_path: Path) -> None:
    output, errors = await run(IMPORTS, tmp_path)
    assert output == "imported\n", errors


async def test_a_client_trains_with_what_windows_has(server: Running, tmp_path: Path) -> None:
    await server.roll()
    output, errors = await run(TRAINS, tmp_path, server.url, TOKENS.client)
    assert output == "4 1\n", errors


@pytest.mark.processes
async def test_the_command_ajet_runs_with_what_windows_has(tmp_path: Path) -> None:
    output, errors = await run(AJET, tmp_path, "doctor")
    assert "Python" in output, errors


@pytest.mark.processes
async def test_a_server_names_the_systems_that_it_needs(tmp_path: Path) -> None:
    _, errors = await run(AJET, tmp_path, "serve")
    assert "a swarm server needs Linux or macOS" in errors
