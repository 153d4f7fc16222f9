"""The tables. Their columns are those of `ajet_stores.codec`, and a few of our own."""

from __future__ import annotations

VERSION = 1

# Without primary keys where rows are replaced: DuckDB refuses a key that was deleted in the same
# transaction. `messages` has text, or bytes if the call is compressed. `totals` is a view, because
# adding up two columns is what DuckDB is fast at.
TABLES = """
CREATE TABLE format (version INTEGER NOT NULL);
CREATE TABLE run (
    run_id VARCHAR NOT NULL, config_json VARCHAR NOT NULL, created_at DOUBLE NOT NULL,
    active INTEGER NOT NULL, paused VARCHAR NOT NULL, back_to BIGINT, retrains BIGINT NOT NULL
);
CREATE TABLE batches (
    id BIGINT NOT NULL, batch_id VARCHAR NOT NULL, step BIGINT NOT NULL, created_at DOUBLE NOT NULL,
    refused VARCHAR NOT NULL, credit VARCHAR NOT NULL
);
CREATE TABLE episodes (
    id BIGINT NOT NULL, episode_id VARCHAR NOT NULL UNIQUE, key_hash VARCHAR NOT NULL,
    task_id VARCHAR NOT NULL, group_name VARCHAR NOT NULL, kind VARCHAR NOT NULL,
    tag VARCHAR NOT NULL, client_id VARCHAR NOT NULL, claim_version BIGINT NOT NULL,
    lease_seconds DOUBLE NOT NULL, created_at DOUBLE NOT NULL, state VARCHAR NOT NULL,
    reward DOUBLE, components VARCHAR NOT NULL, call_rewards VARCHAR NOT NULL,
    agent_rewards VARCHAR NOT NULL, metadata VARCHAR NOT NULL, reason VARCHAR NOT NULL,
    finished_at DOUBLE, batch_id VARCHAR, batch_position BIGINT, claim_hash VARCHAR NOT NULL,
    cause VARCHAR NOT NULL, heartbeat_seconds DOUBLE, final INTEGER NOT NULL,
    mixed INTEGER NOT NULL, rules VARCHAR NOT NULL, joint_id VARCHAR, joint_role VARCHAR,
    joint_arbiter VARCHAR, joint_arbiter_run VARCHAR
);
CREATE TABLE calls (
    id BIGINT NOT NULL, episode BIGINT NOT NULL, call_id VARCHAR NOT NULL UNIQUE,
    call_index BIGINT NOT NULL, agent VARCHAR NOT NULL, base BIGINT, shared BIGINT NOT NULL,
    suffix BLOB NOT NULL, sampled BLOB NOT NULL, logprobs BLOB NOT NULL,
    policy_versions BLOB NOT NULL, temperature DOUBLE NOT NULL, top_p DOUBLE NOT NULL,
    top_k BIGINT NOT NULL, finish_reason VARCHAR NOT NULL, created_at DOUBLE NOT NULL,
    metadata VARCHAR NOT NULL, messages UNION(plain VARCHAR, packed BLOB) NOT NULL, answer VARCHAR,
    tools VARCHAR, sampled_from BLOB, compressed INTEGER NOT NULL, length BIGINT NOT NULL,
    sampled_length BIGINT NOT NULL
);
CREATE TABLE steps (
    step BIGINT NOT NULL, batch_id VARCHAR NOT NULL, metrics VARCHAR NOT NULL,
    finished_at DOUBLE NOT NULL, config_json VARCHAR NOT NULL
);
CREATE TABLE scores (
    call BIGINT NOT NULL, step BIGINT NOT NULL, advantage DOUBLE NOT NULL, logprobs BLOB NOT NULL
);
CREATE VIEW totals (name, value) AS
    SELECT 'calls', count(*) FROM calls
    UNION ALL SELECT 'tokens_raw', coalesce(sum(length), 0)::BIGINT FROM calls
    UNION ALL SELECT 'tokens_sampled', coalesce(sum(sampled_length), 0)::BIGINT FROM calls;
"""
