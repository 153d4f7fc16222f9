"""Train LLM agents by reinforcement learning: the public names of agentjet.

```python
from agentjet import AsyncSwarmClient, RunConfig, trainable, train
```

`agentjet.client` has the clients of swarm servers. `agentjet.agents` makes existing agents
trainable, and `agentjet.local` starts a server for one program; they are imported when one of their
names is first used. Run configurations are in `ajet_core.protocol` and errors in
`ajet_core.errors`.
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
    from agentjet.local import LocalServer

__all__ = [
    "AjetError",
    "AsyncSwarm",
    "AsyncSwarmClient",
    "Curriculum",
    "Episode",
    "EpisodeOutcome",
    "LocalServer",
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
    if name == "LocalServer":
        from agentjet.local import LocalServer

        return LocalServer
    if name in __all__:
        from agentjet import agents

        return getattr(agents, name)
    raise AttributeError(f"module 'agentjet' has no attribute {name!r}")
