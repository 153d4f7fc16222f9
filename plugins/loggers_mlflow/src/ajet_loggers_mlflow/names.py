"""Names that MLflow accepts, for any names of agentjet."""

from __future__ import annotations

import hashlib
import re

LONGEST = 200
_REFUSED = re.compile(r"[^A-Za-z0-9_\-. /]")


def mlflow_name(*parts: str) -> str:
    """Join parts to a name for a metric or parameter.

    MLflow refuses many characters. A name that has to change gets a hash of the original, so
    different names stay different. A part may hold slashes, because metrics do.
    """
    name = "/".join(parts)
    accepted = _REFUSED.sub("_", name)
    pieces = [piece if piece.strip(". ") else "_" for piece in accepted.split("/")]
    accepted = "/".join(pieces)[:LONGEST]
    if accepted == name:
        return name
    return f"{accepted}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
