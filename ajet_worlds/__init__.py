"""Worlds: small environments that each need one ability, for demos, health checks and comparisons.

```python
from ajet_worlds import load_world

world = load_world("grid")
```

Worlds are components (`ajet_register_worlds`), so packages of others add theirs. ``docs/worlds.md`` lists
those that come with agentjet and says how to write one.
"""

from ajet_worlds.registry import load_world, world_specs

__all__ = ["load_world", "world_specs"]
