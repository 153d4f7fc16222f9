"""Train existing agents: decorate a function or an agent with `trainable`, then `train` it.

```python
from agentjet import train, trainable

def score(task, answer):
    return 1.0 if answer == task["answer"] else 0.0

@trainable(reward=score)
async def solve(task):
    result = await my_agent.run(task["question"])
    return result.text

train(solve, tasks, epochs=3)
```
"""

from agentjet.agents.adapters import Adapters, current_agent, installed_adapters
from agentjet.agents.curriculum import Curriculum
from agentjet.agents.decorator import trainable
from agentjet.agents.overriding import derived_classes, override_method
from agentjet.agents.registered import load_judge, read_tasks
from agentjet.agents.route import (
    Route,
    agent_name,
    current_route,
    enter_route,
    passthrough,
    routed,
)
from agentjet.agents.running.programs import EpisodeRun, Trainable
from agentjet.agents.running.programs_async import AsyncTrainable
from agentjet.agents.running.programs_sync import SyncTrainable
from agentjet.agents.sending import RoutedTransports, instrument, routed_transports
from agentjet.agents.tasks import task_of, text_of_task
from agentjet.agents.threads import Threads
from agentjet.agents.training import train, train_async

__all__ = [
    "Adapters",
    "AsyncTrainable",
    "Curriculum",
    "EpisodeRun",
    "Route",
    "RoutedTransports",
    "SyncTrainable",
    "Threads",
    "Trainable",
    "agent_name",
    "current_agent",
    "current_route",
    "derived_classes",
    "enter_route",
    "installed_adapters",
    "instrument",
    "load_judge",
    "override_method",
    "passthrough",
    "read_tasks",
    "routed",
    "routed_transports",
    "task_of",
    "text_of_task",
    "train",
    "train_async",
    "trainable",
]
