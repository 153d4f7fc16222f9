"""The hierarchy of errors that agentjet raises.

```
AjetError                         internal_error          500
├── ConfigError (ValueError)      invalid_config          400
│   ├── UnknownComponentError     unknown_component       400
│   ├── ModelDirectoryError       invalid_model           400
│   └── ChannelError              no_weight_channel       400
├── PluginError                   plugin_error            500
│   ├── PluginConflictError       plugin_conflict         500
│   ├── PluginApiError            plugin_api_mismatch     500
│   └── PluginLoadError           plugin_broken           500
├── BackendEnvironmentError       environment_error       500
├── RequestError (ValueError)     invalid_request_error   400
│   ├── UnsupportedError          unsupported_parameter   400
│   ├── ContextLengthError        context_length_exceeded 400
│   ├── BodyTooLargeError         body_too_large          413
│   ├── HeadTooLargeError         head_too_large          431
│   ├── SlowRequestError          request_timeout         408
│   ├── NotFoundError             not_found               404
│   └── VersionError              unsupported_version     426
├── AuthError (PermissionError)   invalid_api_key         401
│   └── ForbiddenError            forbidden               403
├── EpisodeError                  episode_error           409
│   ├── EpisodeNotFoundError      episode_not_found       404
│   ├── EpisodeClosedError        episode_closed          410
│   └── CallLimitError            call_limit              403
│       └── TokenLimitError       token_limit             403
├── StateError (RuntimeError)     wrong_state             409
│   ├── NotRollingError           not_rolling             503
│   ├── BatchStarvedError         batch_starved           409
│   └── BusyError                 busy                    429
├── UnreadableFileError (ValueError)  unreadable_file     500
├── StoreError                    store_error             500
│   ├── StoreUnavailableError     store_unavailable       503
│   │   └── StoreFullError        storage_full            507
│   └── DamagedRecordError        damaged_record          500
├── WorkerError                   worker_error            503
│   ├── WorkerDiedError           worker_died             503
│   └── WorkerBootError           worker_boot_failed      500
├── EngineError                   engine_error            503
│   ├── WeightsGoneError          weights_gone            503
│   └── SealError                 seal_broken             503
├── TrainerError                  trainer_error           500
│   ├── StepRefusedError          step_refused            500
│   └── WeightsLostError          weights_lost            500
├── EnvironmentFailedError        environment_failed      500
├── RoutingError                  routing_error           500
├── SandboxError                  sandbox_failed          500
├── DeadlineError (TimeoutError)  deadline_exceeded       504
└── ServerUnreachableError (ConnectionError)  server_unreachable 503
```

Processes and the network send an error as its ``type``, ``message``, ``param`` and ``retry_after``
(`AjetError.to_payload`), from which `error_from_payload` restores the same class.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any, ClassVar

# fmt: off
__all__ = [
    "AjetError", "AuthError", "BackendEnvironmentError", "BatchStarvedError",
    "BodyTooLargeError", "BusyError", "CallLimitError", "ChannelError", "ConfigError",
    "ContextLengthError", "DamagedRecordError", "DeadlineError", "EngineError",
    "EnvironmentFailedError", "EpisodeClosedError", "EpisodeError", "EpisodeNotFoundError",
    "ForbiddenError", "HeadTooLargeError", "ModelDirectoryError", "NotFoundError",
    "NotRollingError", "PluginApiError", "PluginConflictError", "PluginError",
    "PluginLoadError", "RequestError", "RoutingError", "SandboxError", "SealError",
    "ServerUnreachableError", "SlowRequestError", "StateError", "StepRefusedError",
    "StoreError", "StoreFullError", "StoreUnavailableError", "TokenLimitError", "TrainerError",
    "UnknownComponentError", "UnreadableFileError", "UnsupportedError", "VersionError",
    "WeightsGoneError", "WeightsLostError", "WorkerBootError", "WorkerDiedError", "WorkerError",
    "error_from_payload",
]
# fmt: on


class AjetError(Exception):
    """Base of all agentjet errors.

    :param message: what happened, to which object, and what to do next.
    :param param: the request field or setting that caused the error, if any.
    :param retry_after: seconds after which a repeat may succeed; None if it cannot.
    """

    type: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500

    def __init__(
        self, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.param, self.retry_after))

    def to_payload(self) -> dict[str, Any]:
        """Return the error as plain data: ``{"type", "message", "param", "retry_after"}``."""
        return {
            "type": self.type,
            "message": self.message,
            "param": self.param,
            "retry_after": self.retry_after,
        }


def _rebuild(
    cls: type[AjetError], message: str, param: str | None, retry_after: float | None
) -> AjetError:
    return cls(message, param=param, retry_after=retry_after)


class ConfigError(AjetError, ValueError):
    """A setting or run configuration that cannot be used."""

    type = "invalid_config"
    status = 400


class UnknownComponentError(ConfigError):
    """A component name that no installed plugin provides."""

    type = "unknown_component"


class ModelDirectoryError(ConfigError):
    """A model directory that is missing, incomplete or outside the allowed roots."""

    type = "invalid_model"


class ChannelError(ConfigError):
    """Trainer and engine have no weight channel in common."""

    type = "no_weight_channel"


class PluginError(AjetError):
    """A plugin misbehaved; the message names its distribution and version."""

    type = "plugin_error"


class PluginConflictError(PluginError):
    """Two plugins provide a component of the same kind and name."""

    type = "plugin_conflict"


class PluginApiError(PluginError):
    """A plugin was written for a hook API that this version does not offer."""

    type = "plugin_api_mismatch"


class PluginLoadError(PluginError):
    """A plugin could not be imported, or one of its hooks raised."""

    type = "plugin_broken"


class BackendEnvironmentError(AjetError):
    """A Python environment for a backend could not be created."""

    type = "environment_error"


class RequestError(AjetError, ValueError):
    """A request that cannot succeed without changes."""

    type = "invalid_request_error"
    status = 400


class UnsupportedError(RequestError):
    """A request for something this server cannot do."""

    type = "unsupported_parameter"


class ContextLengthError(RequestError):
    """The prompt leaves no room for an answer in the model's context.

    :param prompt_tokens: tokens of the prompt, if known.
    :param max_context: tokens of the model's context, if known.
    """

    type = "context_length_exceeded"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        prompt_tokens: int | None = None,
        max_context: int | None = None,
    ) -> None:
        super().__init__(message, param=param, retry_after=retry_after)
        self.prompt_tokens = prompt_tokens
        self.max_context = max_context


class BodyTooLargeError(RequestError):
    """A request body over the server's limit."""

    type = "body_too_large"
    status = 413


class HeadTooLargeError(RequestError):
    """A URL or headers over the server's limit."""

    type = "head_too_large"
    status = 431


class SlowRequestError(RequestError):
    """A request that did not arrive in time."""

    type = "request_timeout"
    status = 408


class NotFoundError(RequestError):
    """A route or object that does not exist."""

    type = "not_found"
    status = 404


class VersionError(RequestError):
    """Client and server share no protocol version."""

    type = "unsupported_version"
    status = 426


class AuthError(AjetError, PermissionError):
    """A missing, unknown or revoked token or key."""

    type = "invalid_api_key"
    status = 401


class ForbiddenError(AuthError):
    """A valid token that does not give access to this route."""

    type = "forbidden"
    status = 403


class EpisodeError(AjetError):
    """An action that the episode's state does not allow."""

    type = "episode_error"
    status = 409


class EpisodeNotFoundError(EpisodeError):
    """An episode id that this server never issued."""

    type = "episode_not_found"
    status = 404


class EpisodeClosedError(EpisodeError):
    """An episode that was ended or aborted, or whose lease expired."""

    type = "episode_closed"
    status = 410


class CallLimitError(EpisodeError):
    """A model call that exceeds the maximum number of calls of its episode."""

    type = "call_limit"
    # SDKs repeat requests after 409 and 429, and many programs repeat all that fail with 400.
    status = 403


class TokenLimitError(CallLimitError):
    """A model call of an episode that has reached its maximum number of sampled tokens."""

    type = "token_limit"


class StateError(AjetError, RuntimeError):
    """An action that the server's state does not allow."""

    type = "wrong_state"
    status = 409


class NotRollingError(StateError):
    """Episodes cannot be claimed now; ``retry_after`` says when to retry, if at all."""

    type = "not_rolling"
    status = 503


class BatchStarvedError(StateError):
    """An awaited step cannot be trained: its batch lacks episodes, and no client rolls any out."""

    type = "batch_starved"


class BusyError(StateError):
    """A limit was reached; the request may be repeated after ``retry_after`` seconds."""

    type = "busy"
    status = 429


class UnreadableFileError(AjetError, ValueError):
    """A file has invalid content or cannot be read; the message names it."""

    type = "unreadable_file"


class StoreError(AjetError):
    """The sample store failed."""

    type = "store_error"


class DamagedRecordError(StoreError):
    """A record in the store differs from what was written; others can still be read."""

    type = "damaged_record"


class StoreUnavailableError(StoreError):
    """The store cannot be used now; the same operation may succeed later."""

    type = "store_unavailable"
    status = 503


class StoreFullError(StoreUnavailableError):
    """The disk or the store's quota is full; nothing was written."""

    type = "storage_full"
    status = 507


class WorkerError(AjetError):
    """A worker process failed."""

    type = "worker_error"
    status = 503


class WorkerDiedError(WorkerError):
    """A worker process ended while it was needed."""

    type = "worker_died"


class WorkerBootError(WorkerError):
    """A worker process failed to start; the message shows the last lines of its output."""

    type = "worker_boot_failed"
    status = 500


class EngineError(AjetError):
    """The inference engine failed."""

    type = "engine_error"
    status = 503


class WeightsGoneError(EngineError):
    """The weights of an update are no longer sent; a newer update will follow."""

    type = "weights_gone"


class SealError(EngineError):
    """An engine would serve weights other than those that the trainer published."""

    type = "seal_broken"


class TrainerError(AjetError):
    """The trainer failed."""

    type = "trainer_error"


class StepRefusedError(TrainerError):
    """The trainer did not apply a batch: weights, optimiser, RNG state and steps are unchanged."""

    type = "step_refused"


class WeightsLostError(TrainerError):
    """Weights or optimiser were corrupted during a step; only loading a checkpoint helps."""

    type = "weights_lost"


class SandboxError(AjetError):
    """A sandbox could not run a program."""

    type = "sandbox_failed"
    status = 500


class EnvironmentFailedError(AjetError):
    """The environment of a task, or its grader, failed: there is no reward."""

    type = "environment_failed"
    status = 500


class RoutingError(AjetError):
    """A model call of an episode cannot be routed, or none was answered."""

    type = "routing_error"
    status = 500


class DeadlineError(AjetError, TimeoutError):
    """An operation did not finish in time."""

    type = "deadline_exceeded"
    status = 504


class ServerUnreachableError(AjetError, ConnectionError):
    """The client could not reach the server after all retries."""

    type = "server_unreachable"
    status = 503


def _by_type(cls: type[AjetError] = AjetError) -> dict[str, type[AjetError]]:
    below = [_by_type(kind) for kind in cls.__subclasses__()]
    return dict(ChainMap({cls.type: cls}, *below))


def error_from_payload(payload: Mapping[str, Any]) -> AjetError:
    """Restore an error from `AjetError.to_payload`; unknown types become `AjetError`."""
    cls = _by_type().get(str(payload.get("type")), AjetError)
    retry_after = payload.get("retry_after")
    param = payload.get("param")
    return cls(
        str(payload.get("message", "no message")),
        param=str(param) if param is not None else None,
        retry_after=float(retry_after) if isinstance(retry_after, int | float) else None,
    )
