"""The contract of agentjet: errors, plugins, interfaces, protocol and timelines.

Everything else imports this package, and it imports nothing of theirs: what is in here is what plugins and clients of other
versions can rely on.
"""

__version__ = "0.1.0"
