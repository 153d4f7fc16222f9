"""The recipe trains for a step: with a scripted model, but with MetaGPT itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentjet import SwarmClient
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm

HERE = Path(__file__).parent
DOORS = ("left", "middle", "right")
REPLIES = (
    ScriptedReply(prompt="Name the door", says=tuple(f"The {door}.<|im_end|>" for door in DOORS)),
    ScriptedReply(prompt="", says=tuple(f"Take the {door} door.<|im_end|>" for door in DOORS)),
)
TASKS, EPISODES = 16, 2


def test_the_roles_of_the_program_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call in its own episode, under the name of the role that made it."""
    monkeypatch.setenv("METAGPT_PROJECT_ROOT", str(tmp_path / "metagpt"))
    monkeypatch.syspath_prepend(HERE)
    batch = {"tasks": 8, "episodes_per_task": EPISODES}
    with ScriptedSwarm(tmp_path / "swarm", REPLIES, batch=batch) as swarm:
        monkeypatch.setenv("AJET_URL", swarm.url)
        monkeypatch.setenv("AJET_TOKEN", swarm.token)
        import training

        run = training.Role.run
        training.name_roles()
        assert training.Role.run is run
        report = training.main()
        assert [str(failure.error) for failure in report.failures] == []
        assert len(report.outcomes) == TASKS * EPISODES
        assert 0 < report.reward_mean < 1
        for result in report.outcomes:
            calls = swarm.calls(result.episode.episode_id)
            assert [call.agent for call in calls] == ["planner", "worker"]
            for call in calls:
                assert f"You are a {call.agent.title()}, named {call.agent}" in swarm.text(call)
                assert result.task.id in swarm.text(call)
        with SwarmClient(swarm.url, swarm.tokens.control) as control:
            control.stop_engine()
            assert control.status().policy_version >= 1
