"""The swarm client: claim episodes, run any agent against them, report rewards.

```python
from agentjet import Swarm, SwarmClient

with SwarmClient() as client:
    def agent(task, episode):
        answer = my_agent(task.id, episode.base_url, episode.api_key, episode.model)
        return 1.0 if answer == "42" else 0.0

    tasks = ["task-1", "task-2"]
    report = client.run_episodes_until_all_complete(tasks, agent, episodes_per_task=8)
```

Several models that train on the same episodes have one server each, and share a client:

```python
with Swarm({"planner": url1, "executor": url2}) as swarm, swarm.episode("task-1") as ep:
    answer = my_team(ep["planner"], ep["executor"])
    ep.rewards = {"planner": 1.0, "executor": 0.5}
```

Importing this module is fast: it loads no tensor library and no server code, and httpx2 only at the
first request.
"""

from agentjet.client._async import AsyncScopedEpisode, AsyncSwarmClient
from agentjet.client._credentials import LivePage, TokenClient
from agentjet.client._episode import (
    Episode,
    EpisodeFailure,
    EpisodeResult,
    Resumption,
    RunnerReport,
)
from agentjet.client._evaluation import EvaluationReport, TaskEvaluation
from agentjet.client._joint import SwarmEpisode, SwarmOutcome
from agentjet.client._swarm_async import AsyncScopedSwarmEpisode, AsyncSwarm
from agentjet.client._swarm_sync import ScopedSwarmEpisode, Swarm
from agentjet.client._sync import ScopedEpisode, SwarmClient
from agentjet.client._view import AsyncViewClient
from ajet_core.task import EpisodeOutcome, Task

__all__ = [
    "AsyncScopedEpisode",
    "AsyncScopedSwarmEpisode",
    "AsyncSwarm",
    "AsyncSwarmClient",
    "AsyncViewClient",
    "Episode",
    "EpisodeFailure",
    "EpisodeOutcome",
    "EpisodeResult",
    "EvaluationReport",
    "LivePage",
    "Resumption",
    "RunnerReport",
    "ScopedEpisode",
    "ScopedSwarmEpisode",
    "Swarm",
    "SwarmClient",
    "SwarmEpisode",
    "SwarmOutcome",
    "Task",
    "TaskEvaluation",
    "TokenClient",
]
