"""Small environments that each require one ability, for demos, health checks and comparisons.

```python
from ajet_worlds import load_world

world = load_world("grid")
```

Worlds are components (`ajet_register_worlds`), so other packages can add more. ``docs/worlds.md``
lists those included in agentjet and explains how to write one.
"""

from ajet_worlds.registry import load_world, world_specs

__all__ = ["load_world", "world_specs"]
