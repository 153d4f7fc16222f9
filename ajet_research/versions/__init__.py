"""Performance by version: the arena ``versions``, whose factor is the installed agentjet."""

from ajet_research.versions.arena import VersionsArena

__all__ = ["VersionsArena"]
