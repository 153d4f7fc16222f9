"""agentjet: reinforcement learning for LLM agents, with the agent outside the trainer.

`trainable`, `train` and what goes with them (`ajet_core.agents`) are imported at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet_core.agents import agent_name, passthrough, train, train_async, trainable

__version__ = "0.1.0"

__all__ = ["__version__", "agent_name", "passthrough", "train", "train_async", "trainable"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from ajet_core import agents

        return getattr(agents, name)
    raise AttributeError(f"module 'ajet_core' has no attribute {name!r}")
