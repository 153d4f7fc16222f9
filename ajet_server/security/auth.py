"""Keys of episodes, made from 256 random bits, and what tokens and keys have in common."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping

EPISODE_KEY_PREFIX = "ajet-ep-"


def hash_secret(secret: str) -> str:
    """Hex SHA-256. A fast hash suffices for long random secrets, which these are."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_episode_key(episode_id: str, claim_id: str | None) -> str:
    """A new API key for one episode; it names the episode, so that a dead key can be explained.

    :param claim_id: a secret of the client's, of which the same key can be made again; None takes a random one.
    """
    secret = claim_id or secrets.token_urlsafe(32)
    digest = hmac.digest(secret.encode(), f"episode key {episode_id}".encode(), "sha256")
    return (
        f"{EPISODE_KEY_PREFIX}{episode_id}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
    )


def bearer(headers: Mapping[str, str]) -> str:
    """The secret of the ``Authorization`` (or ``x-api-key``, ``x-goog-api-key``) header, "" if there is none."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value:
        return value.strip()
    return (headers.get("x-api-key") or headers.get("x-goog-api-key", "")).strip()
