"""agentjet's task source for OpenEnv: environments that a server runs, at a URL."""
