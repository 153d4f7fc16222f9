"""Which versions of vLLM there is a word for."""

from __future__ import annotations

import logging

from packaging.version import InvalidVersion, Version

from ajet_core.errors import EngineError

LEAST = "0.31"
BELOW = "0.33"
"""The tests of this plugin were run with versions from `LEAST` to below `BELOW`."""

_log = logging.getLogger("ajet.engine")


def check_version(text: str) -> None:
    """Refuse a server that is too old; of one that is newer than any that was tried, say so in the log.

    :param text: what the server says of itself; of a build without a version nothing can be said.
    :raises EngineError: it is too old.
    """
    try:
        version = Version(text)
    except InvalidVersion:
        _log.warning(
            "the vLLM server says that it is %r: tried were %s to below %s", text, LEAST, BELOW
        )
        return
    # A build between two releases is the later one.
    release = Version(version.base_version)
    if release < Version(LEAST):
        raise EngineError(
            f"the vLLM server is of version {text}, and {LEAST} or later is needed: upgrade it "
            f"(pip install 'vllm>={LEAST},<{BELOW}'), or make an environment for it (ajet env create vllm)"
        )
    if release >= Version(BELOW):
        _log.warning("vLLM %s was not tried: known to work are %s to below %s", text, LEAST, BELOW)
