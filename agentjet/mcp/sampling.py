"""Model calls that MCP servers ask an episode for."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from agentjet.mcp.content import text_of_block
from agentjet.mcp.servers import leaves

if TYPE_CHECKING:
    from mcp_types import CreateMessageRequestParams, CreateMessageResult, ErrorData

Sample = Callable[[list[dict[str, str]], int], Coroutine[Any, Any, str]]
"""Calls a model with messages of chat completions and a limit of tokens, and returns its answer."""


class Sampler:
    """Answers the servers of one episode, with the model calls of the episode.

    :ivar error: what the first failed model call raised.
    :ivar running: how many model calls run.
    :ivar ended: when the last one ended, in seconds of the event loop's clock.
    """

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        # The tasks of connections have no context, so that their own requests are not rerouted.
        self._context = contextvars.copy_context()
        self.error: Exception | None = None
        self.running = 0
        self.ended = 0.0

    async def __call__(
        self,
        context: object,  # noqa: ARG002 - as `mcp` names it
        params: CreateMessageRequestParams,
    ) -> CreateMessageResult | ErrorData:
        """Answer one request, as ``sampling_callback`` of the package ``mcp``."""
        from mcp_types import INTERNAL_ERROR, CreateMessageResult, ErrorData, TextContent

        self.running += 1
        try:
            call = self._sample(_messages(params), params.max_tokens)
            text = await asyncio.create_task(call, context=self._context)
            if not isinstance(text, str):
                raise TypeError(f"sample= must return the text of the answer, not {text!r}")
        # Whatever the SDK of the agent raises. The episode ends with it.
        except Exception as error:  # noqa: BLE001
            self.error = self.error or error
            return ErrorData(code=INTERNAL_ERROR, message=f"the model call failed: {leaves(error)}")
        finally:
            self.running -= 1
            self.ended = asyncio.get_running_loop().time()
        content = TextContent(type="text", text=text)
        return CreateMessageResult(role="assistant", content=content, model="agentjet")


def _messages(request: CreateMessageRequestParams) -> list[dict[str, str]]:
    messages = [
        {"role": message.role, "content": "\n".join(map(text_of_block, message.content_as_list))}
        for message in request.messages
    ]
    if request.system_prompt:
        messages.insert(0, {"role": "system", "content": request.system_prompt})
    return messages
