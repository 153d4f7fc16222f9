"""Secrets in the settings of a run's components."""

from __future__ import annotations

from typing import Any

from ajet_core.protocol import ComponentChoice, RunConfig
from ajet_installation.settings import MASK, SECRET_KEY


def without_secrets(config: RunConfig) -> RunConfig:
    """Return a configuration whose components' secrets are masked."""
    settings = _masked(config.algorithm.advantage_settings, secret=False)
    hidden = {
        "engine": _without_secrets(config.engine),
        "trainer": _without_secrets(config.trainer),
        "merger": _without_secrets(config.merger),
        "algorithm": config.algorithm.model_copy(update={"advantage_settings": settings}),
    }
    return config.model_copy(update=hidden)


def _without_secrets(choice: ComponentChoice) -> ComponentChoice:
    return choice.model_copy(update={"settings": _masked(choice.settings, secret=False)})


def _masked(value: Any, *, secret: bool) -> Any:
    """Return `value` with the strings masked that are under the name of a secret."""
    if isinstance(value, dict):
        return {
            k: _masked(v, secret=secret or bool(SECRET_KEY.search(k))) for k, v in value.items()
        }
    if isinstance(value, list):
        return [_masked(item, secret=secret) for item in value]
    return MASK if secret and isinstance(value, str) else value
