"""The judge ``autoevals``: scorers of the library autoevals, which this module does not import."""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import logging
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import Field

from agentjet.judges.answers import field_of
from agentjet.judges.endpoint import SHOWN, ChatEndpoint, EndpointFailedError
from agentjet.judges.model import (
    JudgeFailedError,
    KeptVerdicts,
    ModelJudgeSettings,
    judge_endpoint,
)
from agentjet.judges.rubric import LONGEST_REASON, in_thread
from ajet_core.errors import ConfigError
from ajet_core.interfaces import EpisodeOutcome, Judge

_log = logging.getLogger("ajet.judges")


class AutoevalsJudgeSettings(ModelJudgeSettings):
    """:param scorer: a scorer of autoevals, such as ``Factuality``, or ``MODULE:NAME`` of another.

    :param options: of the scorer, as its class takes them.
    :param arguments: what the scorer compares the result with: fields of the task by the name of
        the scorer's argument. The result is its argument ``output``.
    :param base_url: the endpoint, as OpenAI's SDK takes it; "" for scorers that ask no model.
    :param model: the model to ask. It should not be the one that is trained.
    :param embedding_model: the model whose embeddings a scorer compares.
    """

    scorer: Annotated[str, Field(min_length=1)]
    options: Mapping[str, Any] = {}
    arguments: Mapping[str, str] = {"input": "prompt", "expected": "answer"}
    base_url: Annotated[str, Field(pattern=r"^(https?://.*)?$")] = ""
    model: str = ""
    embedding_model: str = ""


class AutoevalsJudge(Judge[AutoevalsJudgeSettings]):
    """The score that a scorer of autoevals gives a result, from 0 to 1; the mean of its votes.

    The scorer's requests go to the endpoint of the settings, whatever the variables of the
    environment say, with the limits that all judges have. The choice and the reason of the first
    vote are in the metadata of the outcome.
    """

    def __init__(self, settings: AutoevalsJudgeSettings) -> None:
        super().__init__(settings)
        try:
            self._library = importlib.import_module("autoevals")
            clients = importlib.import_module("autoevals.oai")
        except ImportError as error:
            raise ConfigError(
                f"the judge 'autoevals' needs pip install 'agentjet[judges]>=0.1' ({error})",
                param="judges.autoevals",
            ) from error
        self._version = version("autoevals")
        self._scorer = self._scorer_class(settings.scorer)
        self._verdicts = KeptVerdicts(settings.cache)
        self._endpoint = judge_endpoint(settings)
        self._client = _client_class(clients.LLMClient, settings, self._endpoint)

    @property
    def spent_tokens(self) -> int:
        """Tokens of all requests."""
        return self._endpoint.spent_tokens

    def __call__(self, task: Any, result: Any) -> Any:
        """Return the outcome, or an awaitable of it if an event loop is running.

        :raises ConfigError: the task has no such field, or the settings are wrong.
        :raises JudgeFailedError: the scorer gave no score.
        """
        return in_thread(self.judge, task, result)

    def judge(self, task: Any, result: Any) -> EpisodeOutcome:
        """Return the outcome; blocks until the scorer is done.

        :raises ConfigError: the task has no such field, or the settings are wrong.
        :raises JudgeFailedError: the scorer gave no score.
        """
        given = {"output": "" if result is None else result}
        for argument, name in self.settings.arguments.items():
            given[argument] = field_of(task, name)
            if given[argument] is None:
                raise ConfigError(
                    f"a task has no field {name!r}: judges.autoevals.arguments maps arguments of "
                    f"{self.settings.scorer} to fields of tasks",
                    param="judges.autoevals.arguments",
                )
        votes = [self._vote(given, vote) for vote in range(self.settings.votes)]
        scores = [score for score, _ in votes]
        return EpisodeOutcome(
            reward=statistics.fmean(scores),
            components={"agreement": Counter(scores).most_common(1)[0][1] / len(scores)},
            metadata=votes[0][1],
        )

    def _vote(self, given: Mapping[str, Any], vote: int) -> tuple[float, dict[str, str]]:
        settings = self.settings
        question = {
            "scorer": settings.scorer,
            "version": self._version,
            "options": settings.options,
            "models": [
                settings.model,
                settings.embedding_model,
                settings.vote_temperature,
                settings.max_tokens,
            ],
            "given": given,
            "vote": vote,
        }
        kept = self._verdicts.recall(question)
        # Another version of the judge may have written it.
        if not isinstance(kept, dict) or kept.keys() != {"score", "metadata"}:
            kept = self._scored(given, vote)
            self._verdicts.keep(question, kept)
        return float(kept["score"]), dict(kept["metadata"])

    def _scored(self, given: Mapping[str, Any], vote: int) -> dict[str, Any]:
        problem = ""
        for attempt in range(self.settings.retries + 1):
            client = self._client(vote + 1000 * attempt)
            try:
                # In a context of its own: there the client is the library's default, which also
                # the scorers that a scorer creates use.
                score = contextvars.copy_context().run(self._scored_with, client, given)
                return _read(score)
            except ConfigError:
                raise
            except EndpointFailedError as error:
                raise JudgeFailedError(str(error)) from error
            except Exception as error:  # noqa: BLE001 - a scorer may raise anything
                problem = f"{type(error).__name__}: {error}"[:SHOWN]
                _log.warning("the scorer %s gave no score: %s", self.settings.scorer, problem)
                if not client.requests:
                    # It would fail again in the same way.
                    break
        raise JudgeFailedError(f"the scorer {self.settings.scorer} gave no score: {problem}")

    def _scored_with(self, client: Any, given: Mapping[str, Any]) -> Any:
        settings = self.settings
        names = {"completion": settings.model, "embedding": settings.embedding_model}
        self._library.init(
            client=client, default_model={key: name for key, name in names.items() if name}
        )
        try:
            return self._scorer(**settings.options).eval(**given)
        finally:
            # The library keeps the embeddings of all results for as long as the process runs.
            similarity = self._library.EmbeddingSimilarity
            with getattr(similarity, "_CACHE_LOCK", contextlib.nullcontext()):
                getattr(similarity, "_CACHE", {}).clear()

    def _scorer_class(self, name: str) -> Callable[..., Any]:
        module, _, attribute = name.rpartition(":")
        try:
            library = importlib.import_module(module) if module else self._library
            scorer: Callable[..., Any] = getattr(library, attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"there is no scorer {name}: write the name of one of autoevals, or MODULE:NAME "
                f"({error})",
                param="judges.autoevals.scorer",
            ) from error
        if not callable(scorer):
            raise ConfigError(f"{name} is not a scorer", param="judges.autoevals.scorer")
        return scorer


class _NeverRaisedError(Exception):
    """What the library takes for a rate limit: nothing, since the endpoint waits itself."""


def _client_class(
    base: type[Any], settings: AutoevalsJudgeSettings, endpoint: ChatEndpoint
) -> type[Any]:
    """Return a class of clients of the library whose requests go to the endpoint of a judge.

    They have no client of OpenAI's SDK, which would read variables of the environment.
    """

    class Client(base):  # type: ignore[misc]  # the library is imported when it is used
        # The library itself repeats what raises this error a hundred times.
        RateLimitError = _NeverRaisedError
        is_async = _is_wrapped = False

        def __init__(self, seed: int) -> None:
            self.seed = seed
            self.requests = 0

        def complete(self, **body: Any) -> dict[str, Any]:
            body.pop("use_responses_api", None)
            limits = {"temperature": settings.vote_temperature, "max_tokens": settings.max_tokens}
            return self.sent("chat/completions", {**limits, **body, "seed": self.seed})

        def embed(self, **body: Any) -> dict[str, Any]:
            return self.sent("embeddings", body)

        def moderation(self, **body: Any) -> dict[str, Any]:
            return self.sent("moderations", {"model": settings.model, **body})

        def sent(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
            if not settings.base_url or not settings.model:
                raise ConfigError(
                    f"the scorer {settings.scorer} asks a model: set judges.autoevals.base_url "
                    "and judges.autoevals.model",
                    param="judges.autoevals.base_url",
                )
            self.requests += 1
            return endpoint.request(path, body)

    return Client


def _read(score: Any) -> dict[str, Any]:
    """Return score and metadata.

    :raises ValueError: the result was not scored.
    """
    # The library has such scores for what was skipped.
    if score.score is None or not math.isfinite(score.score):
        raise ValueError(f"its score is {score.score}")
    texts = {key: score.metadata.get(key) for key in ("choice", "rationale")}
    metadata = {key: str(text)[:LONGEST_REASON] for key, text in texts.items() if text}
    return {"score": float(score.score), "metadata": metadata}
