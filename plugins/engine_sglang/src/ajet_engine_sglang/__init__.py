"""agentjet's inference engine on SGLang servers.

Only the server processes need SGLang itself, and they may run in a separate interpreter.
"""
