"""Names of what the gateway notes in `Call.metadata`."""

from __future__ import annotations

CONTEXT_KEY = "context_key"
"""Hex sha256 of the conversation up to and including the call's answer."""

BARE_CONTEXT_KEY = "context_key_without_text"
"""The same for an answer with text and tool calls, without the text: some clients drop it."""

REASONED = "reasoned"
""""1" if the call's tokens hold reasoning, which templates may drop at a new question."""

ARGUMENTS_DIGEST = "arguments_digest"
"""Hex digest of the answer's arguments as the client was given them, where `Call.answer`, which holds them
in one canonical form, writes them otherwise."""

DRIFT_TOKENS = "drift_tokens"
"""How many of the sampled tokens the template would have written otherwise, had the answer been rendered as
history; absent if none. Extending the call keeps the sampled ones, so nothing is trained on the others."""

ECHO_FIELDS = "echo_fields"
"""Comma separated: the fields (content, arguments, reasoning) in which the agent sent the answer of the call
that this one goes on from in other bytes than it got; absent if none. The tokens are the sampled ones all the
same."""

CALLS_UNREAD = "calls_unread"
""""1" if the agent offered tools and no parser reads what the template writes for a call; absent otherwise."""

MALFORMED_CALLS = "malformed_calls"
"""How many attempts at a tool call in the answer could not be run; absent if none, or if no tools were offered."""
