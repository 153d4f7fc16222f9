"""A harness in this process, for tasksets of verifiers 0.4.

verifiers' own ones start a program that fetches packages for each episode. This one asks the model
until the task or its answer ends the episode; it has no tools.
"""

from __future__ import annotations

from typing import Any, ClassVar

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.dialects.chat import message_to_wire


class _LoopConfig(vf.HarnessConfig):
    """Has no settings."""


class LoopHarness(vf.Harness[_LoopConfig]):
    """Asks the model once with the task's messages."""

    APPENDS_SYSTEM_PROMPT: ClassVar[bool] = True
    SUPPORTS_RESUME: ClassVar[bool] = True
    EXECUTES_CODE: ClassVar[bool] = False
    NEEDS_CONTAINER: ClassVar[bool] = False

    async def launch(  # noqa: PLR0917 - as verifiers calls it
        self,
        ctx: vf.ModelContext,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        *rest: Any,
        **more: Any,
    ) -> vf.ProgramResult:
        """Send the conversation, and end."""
        del trace, runtime, mcp_urls, rest, more
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as llm:
            await llm.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["LoopHarness"]
