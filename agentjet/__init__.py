"""Train LLM agents by reinforcement learning: the public names of agentjet.

```python
from agentjet import AsyncSwarmClient, RunConfig, trainable, train
```

`agentjet.client` has the clients of swarm servers, and `agentjet.agents` makes existing agents
trainable; the latter is imported when one of its names is first used. Run configurations are in
`ajet_core.protocol` and errors in `ajet_core.errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentjet.client import (
    AsyncSwarm,
    AsyncSwarmClient,
    Episode,
    EpisodeOutcome,
    Swarm,
    SwarmClient,
    Task,
)
from ajet_core import __version__
from ajet_core.errors import AjetError
from ajet_core.protocol import RunConfig

if TYPE_CHECKING:
    from agentjet.agents import (
        Curriculum,
        agent_name,
        load_judge,
        passthrough,
        read_tasks,
        train,
        train_async,
        trainable,
    )

__all__ = [
    "AjetError",
    "AsyncSwarm",
    "AsyncSwarmClient",
    "Curriculum",
    "Episode",
    "EpisodeOutcome",
    "RunConfig",
    "Swarm",
    "SwarmClient",
    "Task",
    "__version__",
    "agent_name",
    "load_judge",
    "passthrough",
    "read_tasks",
    "train",
    "train_async",
    "trainable",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from agentjet import agents

        return getattr(agents, name)
    raise AttributeError(f"module 'agentjet' has no attribute {name!r}")
