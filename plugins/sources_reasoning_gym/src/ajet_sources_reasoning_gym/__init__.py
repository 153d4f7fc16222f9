"""agentjet's task source for Reasoning Gym: its procedural datasets, and its verifiers."""
