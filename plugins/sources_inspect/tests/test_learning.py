"""The demo's tiny model learns GridWalk, which is an eval of Inspect here."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from agentjet.client import AsyncSwarmClient, Episode
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, Task
from ajet_sources import load_source
from ajet_testing.door_training import learning_python, real_server
from ajet_worlds import load_world, recipe

STEPS = 18
TASKS = 8
MAKE_MODEL = (
    "import sys; from pathlib import Path; from ajet_worlds import load_world, tiny_model; "
    "tiny_model.create_tiny_model(Path(sys.argv[1]), worlds=[load_world('grid')], seed=0)"
)


@pytest.mark.learns
@pytest.mark.timeout(1200)
async def test_the_success_of_an_eval_rises(tmp_path: Path) -> None:
    """From about 0.2 to 0.9."""
    python = learning_python()
    model = tmp_path / "models" / "tiny"
    model.parent.mkdir()
    await asyncio.to_thread(
        subprocess.run, [python, "-c", MAKE_MODEL, str(model)], check=True, cwd=tmp_path
    )
    config = recipe.run_config(
        load_world("grid"), model, name="gridwalk", seed=0, engine="torch", trainer="torch"
    )
    settings = {
        "log_dir": str(tmp_path / "logs"),
        "reward": "outcome.reward",
        "args": {"count": STEPS * TASKS},
    }
    grid = Path(__file__).parent / "grid_task.py"
    successes: list[float] = []
    with real_server(tmp_path, python) as (url, token, _):
        async with (
            load_source(f"inspect:{grid}", settings) as source,
            AsyncSwarmClient(url, token) as client,
        ):

            async def agent(task: Task, episode: Episode) -> EpisodeOutcome:
                return await source.roll_out(
                    task,
                    ModelEndpoint(episode.base_url, episode.api_key, episode_id=episode.episode_id),
                )

            await client.sync_train_config(config)
            await client.start_engine()
            tasks = list(source.tasks("train"))
            for step in range(STEPS):
                report = await client.run_episodes_until_all_complete(
                    tasks[step * TASKS : (step + 1) * TASKS], agent, episodes_per_task=TASKS
                )
                assert [str(failure.error) for failure in report.failures] == []
                walks = [result.outcome.components["outcome.success"] for result in report.outcomes]
                successes.append(sum(walks) / len(walks))
                await client.wait_for_step(step + 1)
            await client.stop_engine()
    curve = " ".join(f"{one:.2f}" for one in successes)
    (tmp_path / "curve.txt").write_text(curve)
    assert sum(successes[:3]) / 3 < 0.45, curve
    assert sum(successes[-3:]) / 3 > 0.8, curve
