"""agentjet's task source for environments of the library verifiers.

verifiers 0.4 finds the harness by the name of this package, and takes it from ``__all__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet_sources_verifiers.loop import LoopHarness

__all__ = ["LoopHarness"]


def __getattr__(name: str) -> Any:
    """Import the harness when it is first accessed: it needs verifiers 0.4."""
    if name == "LoopHarness":
        from ajet_sources_verifiers.loop import LoopHarness

        return LoopHarness
    raise AttributeError(name)
