"""Secrets in the settings of a run's components."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel

from ajet_core.protocol import ComponentChoice, RunConfig
from ajet_installation.settings import MASK, SECRET_KEY

_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*@")


def without_secrets(config: RunConfig) -> RunConfig:
    """Return a configuration in which components' secrets and the users of URLs are masked."""
    settings = _masked(config.algorithm.advantage_settings, secret=False)
    hidden = {
        "engine": _without_secrets(config.engine),
        "trainer": _without_secrets(config.trainer),
        "merger": _without_secrets(config.merger),
        "algorithm": config.algorithm.model_copy(update={"advantage_settings": settings}),
    }
    masked: RunConfig = _without_users(config.model_copy(update=hidden))
    return masked


def _without_secrets(choice: ComponentChoice) -> ComponentChoice:
    return choice.model_copy(update={"settings": _masked(choice.settings, secret=False)})


def _without_users(value: Any) -> Any:
    """Return `value` with ``USER:PASSWORD@`` of all URLs masked."""
    if isinstance(value, str):
        return _USER_OF_URL.sub("***@", value)
    if isinstance(value, dict):
        return {key: _without_users(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_without_users, value))
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        masked = {name: _without_users(inner) for name, inner in fields.items()}
        changed = {name: inner for name, inner in masked.items() if inner != fields[name]}
        return value.model_copy(update=changed)
    return value


def _masked(value: Any, *, secret: bool) -> Any:
    """Return `value` with the strings masked that are under the name of a secret."""
    if isinstance(value, dict):
        return {
            k: _masked(v, secret=secret or bool(SECRET_KEY.search(k))) for k, v in value.items()
        }
    if isinstance(value, list):
        return [_masked(item, secret=secret) for item in value]
    return MASK if secret and isinstance(value, str) else value
