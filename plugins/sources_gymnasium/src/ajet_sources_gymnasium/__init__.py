"""agentjet's task sources for environments of Gymnasium and games of TextArena."""
