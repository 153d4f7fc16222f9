"""What the plugin registers. This module is light: it names what it does not import."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import AdvantageSpec, hookimpl


@hookimpl
def ajet_register_advantages() -> Sequence[AdvantageSpec]:
    """Register the advantage ``pkpo``."""
    return [
        AdvantageSpec(
            name="pkpo",
            target="ajet_pkpo.advantage:PkpoEstimator",
            settings="ajet_pkpo.settings:PkpoEstimatorSettings",
            summary="optimises pass@k of each task (PKPO, arXiv:2505.15201)",
        )
    ]
