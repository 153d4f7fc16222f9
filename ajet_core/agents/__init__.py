"""Train existing agents: put `trainable` on a function or an agent, and `train` it on a dataset.

```python
from ajet_core import train, trainable

def score(task, answer):
    return 1.0 if answer == task["answer"] else 0.0

@trainable(reward=score)
async def solve(task):
    result = await my_agent.run(task["question"])
    return result.text

train(solve, tasks, epochs=3)
```
"""

from .adapters import Adapters, current_agent, installed_adapters
from .decorator import trainable
from .overriding import derived_classes, override_method
from .programs import AsyncTrainable, Played, SyncTrainable, Trainable
from .route import Route, agent_name, current_route, passthrough, routed
from .sending import RoutedTransports, instrument, routed_transports
from .tasks import task_of, text_of_task
from .threads import Threads
from .training import train, train_async

__all__ = [
    "Adapters",
    "AsyncTrainable",
    "Played",
    "Route",
    "RoutedTransports",
    "SyncTrainable",
    "Threads",
    "Trainable",
    "agent_name",
    "current_agent",
    "current_route",
    "derived_classes",
    "installed_adapters",
    "instrument",
    "override_method",
    "passthrough",
    "routed",
    "routed_transports",
    "task_of",
    "text_of_task",
    "train",
    "train_async",
    "trainable",
]
