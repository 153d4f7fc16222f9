"""One trial of Harbor, and what its end means: a reward, or a failure of the environment."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harbor.agents.installed.base import BaseInstalledAgent, NonZeroAgentExitCodeError
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import ExceptionInfo, TrialResult
from harbor.trial.trial import Trial

from ajet_core.errors import AjetError, EnvironmentFailedError
from ajet_core.interfaces import EpisodeOutcome
from ajet_sources_harbor.machine import CommandTimeoutError
from ajet_sources_harbor.settings import HarborSettings

Cause = Literal["agent", "model", "environment"]

# What the model did, or how much of it an agent used up. Names of Harbor's, LiteLLM's and OpenAI's.
_AGENT = frozenset(
    {
        *("AgentTimeoutError", "NonZeroAgentExitCodeError", "OutputTokenExceededError"),
        *("ContextWindowExceededError", "AgentSafetyRefusalError", "ContextLengthExceededError"),
        *("OutputLengthExceededError", "PermissionDeniedError", "ContentPolicyViolationError"),
    }
)
# The endpoint did not answer, or refused the key or the model.
_MODEL = frozenset(
    {
        *("ApiError", "ApiRateLimitError", "ApiUsageLimitError", "ApiInternalServerError"),
        *("ApiOverloadedError", "ApiConnectionClosedError", "ApiResponseStalledError"),
        *("UnknownApiError", "ApiProviderResourceNotFoundError", "AgentAuthenticationError"),
        *("ModelNotFoundError", "NetworkConnectionError", "APIConnectionError", "APIError"),
        *("APITimeoutError", "Timeout", "AuthenticationError", "RateLimitError", "NotFoundError"),
        *("InternalServerError", "ServiceUnavailableError", "BadGatewayError", "APIStatusError"),
        *("ConflictError", "UnprocessableEntityError", "BadRequestError", "ConnectError"),
        *("ReadTimeout", "ConnectTimeout", "ReadError", "RemoteProtocolError"),
    }
)


# Programs of agents that are checked for, where they are not installed.
_PROGRAMS = {
    "aider": "aider",
    "claude-code": "claude",
    "codex": "codex",
    "gemini-cli": "gemini",
    "goose": "goose",
    "mini-swe-agent": "mini-swe-agent",
    "opencode": "opencode",
    "qwen-code": "qwen",
    "swe-agent": "sweagent",
}
_CHAINED = "\n\nThe above exception was the direct cause"
_LINE = "\n"


def cause_of(kind: str) -> Cause:
    """Return whose failure an exception of a trial is, by the name of its class."""
    if kind in _AGENT:
        return "agent"
    return "model" if kind in _MODEL else "environment"


@dataclass(frozen=True, slots=True)
class TrialTerms:
    """A trial to run.

    :param directory: where its files go.
    :param install: whether Harbor installs the agent.
    """

    task: Path
    agent: AgentConfig
    environment: EnvironmentConfig
    directory: Path
    install: bool
    settings: HarborSettings


async def run_trial(terms: TrialTerms) -> EpisodeOutcome:
    """Run a trial, and return its outcome.

    :raises EnvironmentFailedError: the environment, the model's endpoint or the verifier failed.
    """
    config = TrialConfig(
        task=TaskConfig(path=terms.task),
        trials_dir=terms.directory,
        agent=terms.agent,
        environment=terms.environment,
        timeout_multiplier=terms.settings.timeout_factor,
    )
    try:
        trial = await Trial.create(config)
    # What the task says is checked here, and each failure has a type of its own.
    except Exception as error:
        raise EnvironmentFailedError(f"{terms.task.name}: {_said(error)}") from error
    if not terms.install and isinstance(trial.agent, BaseInstalledAgent):
        _check_instead_of_installing(trial.agent)
    _classify_failures(trial.agent)
    result = await trial.run()
    failures = list(_failures(result))
    for info in failures:
        if (cause := cause_of(info.exception_type)) != "agent":
            what = "the endpoint of the model" if cause == "model" else "the environment"
            raise EnvironmentFailedError(f"{terms.task.name}: {what} failed: {_described(info)}")
    rewards = result.verifier_result.rewards if result.verifier_result else None
    if not rewards:
        raise EnvironmentFailedError(f"{terms.task.name}: the verifier gave no reward")
    metadata = {"trial": config.trial_name}
    if failures:
        metadata["exception"] = failures[0].exception_type
    reward = _reward(rewards, terms.settings.reward, terms.task.name)
    return EpisodeOutcome(reward=reward, components=_numbers(rewards), metadata=metadata)


def _check_instead_of_installing(agent: BaseInstalledAgent) -> None:
    """Make an agent's installation a check that its program is there."""

    async def check(environment: Any) -> None:
        program = _PROGRAMS.get(agent.name())
        if program is None:
            return
        ran = await environment.exec(command=f"command -v {program}")
        if ran.return_code:
            raise RuntimeError(
                f"the agent {agent.name()} is not in the environment: install it on this machine, "
                "and name its directories in read_only and path"
            )

    agent.install = check


def _classify_failures(agent: Any) -> None:
    """Make failures of an agent in this process those of a program, so that it is verified.

    Harbor verifies nothing after other exceptions.
    """
    run = agent.run

    async def classified(*args: Any, **kwargs: Any) -> Any:
        try:
            return await run(*args, **kwargs)
        # They have their meaning for Harbor, or are failures of the environment.
        except (NonZeroAgentExitCodeError, TimeoutError, AjetError, asyncio.CancelledError):
            raise
        except (OSError, CommandTimeoutError) as error:
            if agent.name() in {"oracle", "nop"}:
                raise
            raise _as_agents(error) from error
        except Exception as error:
            if cause_of(type(error).__name__) == "model" or agent.name() in {"oracle", "nop"}:
                raise
            raise _as_agents(error) from error

    agent.run = classified


def _as_agents(error: Exception) -> NonZeroAgentExitCodeError:
    return NonZeroAgentExitCodeError(f"{type(error).__name__}: {error}")


def _failures(result: TrialResult) -> Iterator[ExceptionInfo]:
    if result.exception_info is not None:
        yield result.exception_info
    for step in result.step_results or ():
        if step.exception_info is not None:
            yield step.exception_info


def _reward(rewards: Mapping[str, float], key: str, task: str) -> float:
    if key in rewards:
        value = float(rewards[key])
    elif len(rewards) == 1:
        value = float(next(iter(rewards.values())))
    else:
        raise EnvironmentFailedError(
            f"{task}: the verifier gave {', '.join(sorted(rewards))}, and none of them is {key!r}; "
            "the setting reward names the one to train with"
        )
    if not math.isfinite(value):
        raise EnvironmentFailedError(f"{task}: the verifier gave the reward {value}")
    return value


def _numbers(rewards: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in rewards.items()}


def _described(info: ExceptionInfo) -> str:
    """Return an exception and, if it has one, its first cause."""
    text = f"{info.exception_type}: {info.exception_message[:600]}"
    first, chained, _ = info.exception_traceback.partition(_CHAINED)
    return f"{text}, because of {first.strip().rpartition(_LINE)[2]}" if chained else text


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
