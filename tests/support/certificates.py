"""Certificates of an authority that only tests know."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: an authority, and a certificate it gave for 127.0.0.1 alone."""

    authority: Path
    cert: Path
    key: Path


def make_certificates(directory: Path) -> Certificates:
    """Make them with the command ``openssl``."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the command openssl")
    made = Certificates(*(directory / name for name in ("ca.pem", "cert.pem", "key.pem")))
    authority_key = directory / "ca-key.pem"
    new = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    new += ["-nodes", "-days", "2"]
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    leaf = ["-CA", str(made.authority), "-CAkey", str(authority_key), *name]
    leaf += ["-addext", "basicConstraints=critical,CA:FALSE"]
    for subject, key, out, extensions in (
        ("/CN=test authority", authority_key, made.authority, usage),
        ("/CN=server", made.key, made.cert, leaf),
    ):
        command = [*new, "-subj", subject, "-keyout", str(key), "-out", str(out), *extensions]
        subprocess.run(command, check=True, capture_output=True)
    return made
