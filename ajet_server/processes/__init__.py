"""One server in several processes behind one port.

The server process holds the run, its episodes and the store. Gateway processes answer the calls of
agents: each episode belongs to one of them, by its id. `docs/architecture.md` explains the parts.
"""
