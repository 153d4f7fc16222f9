"""agentjet's inference engine on vLLM servers.

Only the server processes need vLLM itself, and they may run in a separate interpreter.
"""
