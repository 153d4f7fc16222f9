"""Whether the default sandbox can be used on this machine."""

from __future__ import annotations

import functools
import shutil
import subprocess


@functools.cache
def no_bubblewrap() -> str:
    """Why it cannot be used; "" if it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (Debian: apt-get install bubblewrap)"
    box = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    tried = subprocess.run([*box, "true"], check=False, capture_output=True, text=True)
    return f"this machine makes no sandboxes: {tried.stderr}" if tried.returncode else ""
