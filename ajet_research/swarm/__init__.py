"""The arena ``swarm``: each trial is a run on a swarm server of its own, which learns a world."""

from ajet_research.swarm.arena import SwarmArena

__all__ = ["SwarmArena"]
