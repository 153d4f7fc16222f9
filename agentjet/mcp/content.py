"""Content of MCP as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_types import CallToolResult


def text_of_result(result: CallToolResult) -> str:
    """Return the result of a tool as text, with placeholders for what is not text."""
    parts = [text_of_block(block) for block in result.content]
    structured = result.structured_content
    if structured is not None and not any(block.type == "text" for block in result.content):
        parts.append(json.dumps(structured, ensure_ascii=False))
    return "\n".join(parts)


def text_of_block(block: Any) -> str:
    """Return a block of content as text, with a placeholder for what is not text."""
    from mcp_types import (
        AudioContent,
        BlobResourceContents,
        EmbeddedResource,
        ImageContent,
        ResourceLink,
        TextContent,
        TextResourceContents,
    )

    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}: {block.mime_type}, {_bytes_in(block.data)} bytes]"
        case ResourceLink():
            return f"[resource: {block.name}, {block.uri}]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return resource.text
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            return f"[resource: {resource.uri}, {_bytes_in(resource.blob)} bytes]"
    return f"[{block.type}]"


def _bytes_in(base64: str) -> int:
    return len(base64.rstrip("=")) * 3 // 4
