"""The tables of a run, and their migrations."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
from psycopg import sql

from ajet_core.errors import StoreError

Connection = psycopg.Connection[tuple[Any, ...]]

# Lists of token ids and logprobs are bytes, see `ajet_stores.codec`. `calls.base` is the call whose
# tokens start the prompt: prompt = (prompt + sampled of base)[:shared] + suffix. `calls.tools` is
# NULL if it equals that of the base. If `calls.compressed` is 1, `suffix` and `messages` are
# compressed by zlib.
_FIRST: LiteralString = """
CREATE TABLE store (
    one SMALLINT PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL
);
CREATE TABLE run (
    one SMALLINT PRIMARY KEY CHECK (one = 1),
    run_id TEXT NOT NULL,
    config_json TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    active SMALLINT NOT NULL,
    paused TEXT NOT NULL,
    back_to BIGINT,
    retrains SMALLINT NOT NULL
);
CREATE TABLE batches (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch_id TEXT NOT NULL UNIQUE,
    step BIGINT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    refused TEXT NOT NULL,
    credit TEXT NOT NULL
);
CREATE INDEX batches_by_step ON batches (step);
CREATE TABLE episodes (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    episode_id TEXT NOT NULL UNIQUE,
    key_hash TEXT NOT NULL,
    task_id TEXT NOT NULL,
    group_name TEXT NOT NULL,
    kind TEXT NOT NULL,
    tag TEXT NOT NULL,
    client_id TEXT NOT NULL,
    claim_version BIGINT NOT NULL,
    lease_seconds DOUBLE PRECISION NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    state TEXT NOT NULL,
    reward DOUBLE PRECISION,
    components TEXT NOT NULL,
    call_rewards TEXT NOT NULL,
    agent_rewards TEXT NOT NULL,
    metadata TEXT NOT NULL,
    reason TEXT NOT NULL,
    finished_at DOUBLE PRECISION,
    batch_id TEXT REFERENCES batches (batch_id),
    batch_position INTEGER,
    claim_hash TEXT NOT NULL,
    cause TEXT NOT NULL,
    heartbeat_seconds DOUBLE PRECISION,
    final SMALLINT NOT NULL,
    mixed SMALLINT NOT NULL,
    rules TEXT NOT NULL,
    joint_id TEXT,
    joint_role TEXT,
    joint_arbiter TEXT,
    joint_arbiter_run TEXT
);
CREATE INDEX episodes_by_batch ON episodes (batch_id, batch_position) WHERE batch_id IS NOT NULL;
CREATE INDEX episodes_unbatched ON episodes (state) WHERE batch_id IS NULL;
CREATE INDEX episodes_evaluated ON episodes (claim_version) WHERE kind = 'eval';
CREATE TABLE calls (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    episode BIGINT NOT NULL REFERENCES episodes (id),
    call_id TEXT NOT NULL UNIQUE,
    call_index BIGINT NOT NULL,
    agent TEXT NOT NULL,
    base BIGINT REFERENCES calls (id),
    shared BIGINT NOT NULL,
    suffix BYTEA NOT NULL,
    sampled BYTEA NOT NULL,
    logprobs BYTEA NOT NULL,
    policy_versions BYTEA NOT NULL,
    temperature DOUBLE PRECISION NOT NULL,
    top_p DOUBLE PRECISION NOT NULL,
    top_k BIGINT NOT NULL,
    finish_reason TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    metadata TEXT NOT NULL,
    messages BYTEA NOT NULL,
    answer TEXT,
    tools TEXT,
    sampled_from BYTEA,
    compressed SMALLINT NOT NULL
);
CREATE INDEX calls_by_episode ON calls (episode);
CREATE TABLE steps (
    step BIGINT PRIMARY KEY,
    batch_id TEXT NOT NULL,
    metrics TEXT NOT NULL,
    finished_at DOUBLE PRECISION NOT NULL,
    config_json TEXT NOT NULL
);
CREATE TABLE scores (
    call BIGINT NOT NULL REFERENCES calls (id),
    step BIGINT NOT NULL,
    advantage DOUBLE PRECISION NOT NULL,
    logprobs BYTEA NOT NULL,
    PRIMARY KEY (call, step)
);
CREATE INDEX scores_by_step ON scores (step);
CREATE TABLE totals (name TEXT PRIMARY KEY, value BIGINT NOT NULL);
INSERT INTO totals VALUES ('calls', 0), ('tokens_raw', 0), ('tokens_sampled', 0);
INSERT INTO store VALUES (1, 0);
"""

# Each claim and each joint episode has one episode; the first version did not enforce this.
_OWNED: LiteralString = """
UPDATE episodes AS older SET claim_hash = '' WHERE claim_hash != '' AND EXISTS (
    SELECT FROM episodes AS newer WHERE newer.claim_hash = older.claim_hash AND newer.id > older.id
);
UPDATE episodes AS older
SET joint_id = NULL, joint_role = NULL, joint_arbiter = NULL, joint_arbiter_run = NULL
WHERE EXISTS (
    SELECT FROM episodes AS newer WHERE newer.joint_id = older.joint_id AND newer.id > older.id
);
CREATE UNIQUE INDEX episodes_by_joint ON episodes (joint_id) WHERE joint_id IS NOT NULL;
CREATE UNIQUE INDEX episodes_by_claim ON episodes (claim_hash) WHERE claim_hash != '';
ALTER TABLE store ADD COLUMN owner TEXT NOT NULL DEFAULT '';
CREATE FUNCTION require_owner(expected TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    present TEXT;
BEGIN
    SELECT owner INTO present FROM store FOR SHARE;
    IF present != expected THEN
        RAISE EXCEPTION '%', present USING ERRCODE = 'AJ001';
    END IF;
END
$$;
"""

MIGRATIONS: list[LiteralString] = [_FIRST, _OWNED]
"""For each version of the schema, the statements that make it from the version before."""

NOT_OWNER = "AJ001"
"""The SQLSTATE of the error of `require_owner`."""


def prepare(connection: Connection, schema: str, owner: str) -> None:
    """Create the schema of a run, or bring it to the present version, in one transaction.

    From then on, `owner` alone may write to it: this waits for a transaction of the owner before.

    :param connection: not in a transaction; its search path is `schema`.
    :raises StoreError: a newer version of agentjet made it, or it holds something else.
    """
    with connection.transaction():
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        version = _version(connection, schema) or 0
        if version > len(MIGRATIONS):
            raise StoreError(
                f"the schema {schema} was written by a newer agentjet (version {version}; this "
                f"one uses version {len(MIGRATIONS)}): upgrade agentjet-store-postgres, or use "
                "another schema"
            )
        for statements in MIGRATIONS[version:]:
            connection.execute(statements)
        if version < len(MIGRATIONS):
            connection.execute("UPDATE store SET version = %s", (len(MIGRATIONS),))
        connection.execute("UPDATE store SET owner = %s", (owner,))


def require_owner(connection: Connection, owner: str) -> None:
    """Check that no other owner has prepared the schema since.

    In a transaction, this also makes the next owner wait until it ends.

    :raises psycopg.Error: with the SQLSTATE `NOT_OWNER` and the present owner as its message.
    """
    connection.execute("SELECT require_owner(%s)", (owner,))


def check(connection: Connection, schema: str) -> None:
    """Check that the schema can be read.

    :raises StoreError: it does not exist, or is of another version.
    """
    version = _version(connection, schema)
    if version is None:
        raise StoreError(f"the schema {schema} does not exist, so there is no run to read")
    if version != len(MIGRATIONS):
        raise StoreError(
            f"the schema {schema} has version {version}, and this agentjet-store-postgres reads "
            f"version {len(MIGRATIONS)}: start the run's server once to migrate it, or use the "
            "version of its server"
        )


def _version(connection: Connection, schema: str) -> int | None:
    """Return the version of a run's schema, None if there are no tables."""
    tables = {
        name
        for (name,) in connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (schema,)
        )
    }
    if not tables:
        return None
    if "store" not in tables:
        raise StoreError(
            f"the schema {schema} has tables, but is not an agentjet store: use another schema"
        )
    (row,) = connection.execute("SELECT version FROM store")
    version: int = row[0]
    return version
