"""agentjet's inference engine on SGLang servers.

SGLang itself is needed by the server processes alone, which may run in an interpreter of their own.
"""
