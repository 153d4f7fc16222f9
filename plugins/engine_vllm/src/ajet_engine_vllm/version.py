"""Supported versions of vLLM."""

from __future__ import annotations

import logging

from packaging.version import InvalidVersion, Version

from ajet_core.errors import EngineError

LEAST = "0.31"
BELOW = "0.33"
"""This plugin is tested with versions from `LEAST` to below `BELOW`."""

_log = logging.getLogger("ajet.engine")


def check_version(text: str) -> None:
    """Refuse a server that is too old, and log a warning if it is newer than any tested version.

    :param text: the version that the server reports. A build without a version is accepted with a
        warning.
    :raises EngineError: the server is too old.
    """
    try:
        version = Version(text)
    except InvalidVersion:
        _log.warning(
            "the vLLM server reports version %r; tested versions: %s to below %s",
            text,
            LEAST,
            BELOW,
        )
        return
    # A build between two releases counts as the later one.
    release = Version(version.base_version)
    if release < Version(LEAST):
        raise EngineError(
            f"the vLLM server has version {text}, but {LEAST} or later is required: upgrade "
            f"it (pip install 'vllm>={LEAST},<{BELOW}'), or create an environment for it "
            "(ajet env create vllm)"
        )
    if release >= Version(BELOW):
        _log.warning("vLLM %s is untested; tested versions: %s to below %s", text, LEAST, BELOW)
