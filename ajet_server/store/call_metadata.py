"""The keys that the gateway writes to `Call.metadata`."""

from __future__ import annotations

CONTEXT_KEY = "context_key"
"""Hex SHA-256 of the conversation up to and including the call's answer."""

BARE_CONTEXT_KEY = "context_key_without_text"
"""`CONTEXT_KEY` without the text of an answer with tool calls: some clients drop that text."""

REASONED = "reasoned"
""""1" if the call's tokens contain reasoning, which templates may drop at a new question."""

ARGUMENTS_DIGEST = "arguments_digest"
"""Hex digest of the exact text of the answer's arguments that the client got.

Absent if it is the canonical form, which `Call.answer` has.
"""

DRIFT_TOKENS = "drift_tokens"
"""Number of sampled tokens that the template would write differently in history; absent if 0.

Extending the call keeps the sampled tokens, so training never uses the template's.
"""

ECHO_FIELDS = "echo_fields"
"""Comma-separated fields (content, arguments, reasoning) that the agent sent back in other bytes.

They are fields of the answer of the call from which this one continues; absent if there are none.
The prompt has the sampled tokens nevertheless.
"""

CALLS_UNREAD = "calls_unread"
""""1" if the agent offered tools, but no parser reads the template's calls; absent otherwise."""

MALFORMED_CALLS = "malformed_calls"
"""Number of malformed tool calls in the answer; absent if 0, or if no tools were offered."""

SHAPED_BY = "shaped_by"
"""Comma-separated: what changed the distribution of the answer's tokens (min_p, grammar,
penalties, logit_bias), besides temperature, top_p and top_k of the record; absent if nothing did.
"""

IGNORED = "ignored"
"""Comma-separated: what in the request had no effect, as in the header ``x-ajet-ignored``; absent
if there is nothing.
"""
