"""The contract of agentjet: errors, plugins, interfaces, protocol and timelines.

All other packages import this one, and it imports none of them: plugins and clients of other
versions can rely on its contents.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
