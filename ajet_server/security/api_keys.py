"""Episode keys, made from 256 random bits, and helpers that tokens and keys share."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping

EPISODE_KEY_PREFIX = "ajet-ep-"


def hash_secret(secret: str) -> str:
    """Return the hex SHA-256 of a secret. A fast hash suffices for long random secrets."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_episode_key(episode_id: str, claim_id: str | None) -> str:
    """Make the API key of one episode.

    The key contains the episode's id, so that an error can explain why a key is no longer valid.

    :param claim_id: a secret of the client; the same secret gives the same key again. None uses a
        random secret.
    """
    secret = claim_id or secrets.token_urlsafe(32)
    digest = hmac.digest(secret.encode(), f"episode key {episode_id}".encode(), "sha256")
    return (
        f"{EPISODE_KEY_PREFIX}{episode_id}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
    )


def episode_of(key: str) -> str:
    """Return the id of the episode that a key is for; "" if it is not the key of one."""
    episode_id, dot, _ = key.removeprefix(EPISODE_KEY_PREFIX).partition(".")
    return episode_id if dot and key.startswith(EPISODE_KEY_PREFIX) else ""


def bearer(headers: Mapping[str, str]) -> str:
    """Return the secret in a request's headers, "" if there is none.

    It is in ``Authorization``, ``x-api-key`` or ``x-goog-api-key``.
    """
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value:
        return value.strip()
    return (headers.get("x-api-key") or headers.get("x-goog-api-key", "")).strip()
