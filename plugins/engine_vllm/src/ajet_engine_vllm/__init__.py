"""agentjet's inference engine on vLLM servers.

vLLM itself is needed by the server processes alone, which may run in an interpreter of their own.
"""
