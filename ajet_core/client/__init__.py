"""The swarm client: claim episodes, run any agent against them, report rewards.

```python
from ajet_core.client import SwarmClient

with SwarmClient() as client:
    def agent(task, episode):
        answer = my_agent(task.id, episode.base_url, episode.api_key, episode.model)
        return 1.0 if answer == "42" else 0.0

    report = client.run_episodes_until_all_complete(["task-1", "task-2"], agent, episodes_per_task=8)
```

Importing this is quick: no tensors, no server, and httpx only at the first request.
"""

from ._async import AsyncScopedEpisode, AsyncSwarmClient
from ._episode import (
    Episode,
    EpisodeFailure,
    EpisodeOutcome,
    EpisodeResult,
    Resumption,
    RunnerReport,
    Task,
)
from ._sync import ScopedEpisode, SwarmClient

__all__ = [
    "AsyncScopedEpisode",
    "AsyncSwarmClient",
    "Episode",
    "EpisodeFailure",
    "EpisodeOutcome",
    "EpisodeResult",
    "Resumption",
    "RunnerReport",
    "ScopedEpisode",
    "SwarmClient",
    "Task",
]
