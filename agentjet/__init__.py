"""Train LLM agents by reinforcement learning: all that an agent's program imports.

```python
from agentjet import AsyncSwarmClient, RunConfig, trainable, train
```

`agentjet.client` has the clients of swarm servers, and `agentjet.agents` what makes existing agents trainable; it is imported at the
first use of one of its names. Configurations of runs are `ajet_core.protocol`'s, and errors `ajet_core.errors`'.
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
    from agentjet.agents import agent_name, passthrough, train, train_async, trainable

__all__ = [
    "AjetError",
    "AsyncSwarm",
    "AsyncSwarmClient",
    "Episode",
    "EpisodeOutcome",
    "RunConfig",
    "Swarm",
    "SwarmClient",
    "Task",
    "__version__",
    "agent_name",
    "passthrough",
    "train",
    "train_async",
    "trainable",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from agentjet import agents

        return getattr(agents, name)
    raise AttributeError(f"module 'agentjet' has no attribute {name!r}")
