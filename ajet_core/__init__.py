"""agentjet: reinforcement learning for LLM agents, with the agent outside the trainer."""

__version__ = "0.1.0"
