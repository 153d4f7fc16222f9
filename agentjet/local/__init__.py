"""A swarm server on this machine that lives as long as the program that needs it.

```python
from agentjet import LocalServer
```

`ajet serve` starts a server that outlives its clients. For a first try, a notebook or a test it is
simpler if the program starts its own.
"""

from agentjet.local.server import LocalServer

__all__ = ["LocalServer"]
