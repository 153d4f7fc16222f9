"""In Inspect's process: samples are given their episodes, to which the model's calls are sent.

Inspect calls hooks and samples in one task, so that a context variable set by a hook holds for the
sample, its tools and all tasks that it starts.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from inspect_ai.hooks import Hooks, SampleAttemptStart, SampleScoring, hooks
from inspect_ai.log import transcript
from inspect_ai.model import ChatMessage, GenerateConfig, ModelAPI, ModelOutput, modelapi
from inspect_ai.model._providers.openai_compatible import OpenAICompatibleAPI
from inspect_ai.tool import ToolChoice, ToolInfo

from agentjet.agents import Route, enter_route

MODEL = "agentjet/default"
SUBMIT = "submit"
_ANSWERS = 30
_NO_MODEL = (
    "a scorer, or other code outside of the agent, asked the model that is trained: name another "
    "for its role with model_roles (such as ?model_roles.grader=openai/gpt-5-mini), or in the task"
)


@dataclass(eq=False)
class SampleEpisode:
    """What answers the model calls of one sample.

    :param number: of the request.
    :param route: to the episode; None if `answer` is scored instead.
    :param answer: what the model says, whatever it is asked.
    :ivar given: how often the answer was given.
    :ivar uses_tools: whether an answer without a tool call cannot be all that is wanted.
    """

    number: int
    route: Route | None
    episode: str = ""
    answer: str = ""
    given: int = 0
    uses_tools: bool = False
    cancelled: bool = False


@dataclass
class RunningSamples:
    """The samples that run, by their id and epoch."""

    by_key: dict[tuple[str, int], SampleEpisode] = field(default_factory=dict)


running = RunningSamples()
_place: ContextVar[SampleEpisode | None] = ContextVar("ajet_inspect_place", default=None)


@hooks(name="agentjet", description="each sample is an episode")
class EpisodeHooks(Hooks):
    """Gives samples their episodes. Inspect only logs what hooks raise: these cannot fail."""

    async def on_sample_attempt_start(self, data: SampleAttemptStart) -> None:
        """Enter the episode of the sample."""
        place = running.by_key.get((str(data.summary.id), data.summary.epoch))
        _place.set(place)
        if place is not None:
            enter_route(place.route)
            transcript().info({"episode": place.episode}, source="agentjet")

    async def on_sample_scoring(self, data: SampleScoring) -> None:  # noqa: ARG002
        """Leave it, because calls of judges do not belong to the episode."""
        _place.set(None)
        enter_route(None)


class InspectedModel(OpenAICompatibleAPI):
    """The model of the sample's episode. Calls are sent there by agentjet's rerouting of HTTP."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,  # noqa: ARG002
        api_key: str | None = None,  # noqa: ARG002
        config: GenerateConfig = GenerateConfig(),  # noqa: B008
        **model_args: Any,
    ) -> None:
        super().__init__(
            model_name,
            base_url="http://episode.invalid/v1",
            api_key="of the episode",
            config=config,
            service="agentjet",
            **model_args,
        )

    async def generate(
        self,
        input: list[ChatMessage],  # noqa: A002
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> Any:
        """Ask the model of the episode, or give the answer that is to be scored.

        :raises RuntimeError: this code belongs to no episode.
        """
        place = _place.get()
        if place is None:
            raise RuntimeError(_NO_MODEL)
        if place.route is not None:
            return await super().generate(input, tools, tool_choice, config)
        place.given += 1
        if place.given > _ANSWERS:
            raise RuntimeError(f"the agent did not end after {_ANSWERS} equal answers")
        if any(tool.name == SUBMIT for tool in tools):
            answer = {"answer": place.answer}
            return ModelOutput.for_tool_call(MODEL, SUBMIT, answer, content="")
        place.uses_tools = place.uses_tools or bool(tools)
        return ModelOutput.from_content(MODEL, place.answer)


@modelapi(name="agentjet")
def agentjet() -> type[ModelAPI]:
    """Register the provider, whose models are named ``agentjet/NAME``."""
    return InspectedModel
