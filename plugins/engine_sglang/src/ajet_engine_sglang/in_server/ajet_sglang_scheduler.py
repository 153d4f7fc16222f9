"""Request shaping in SGLang's scheduler processes; imports nothing of agentjet.

Penalties, biases and grammars of requests are applied where tokens are sampled, while the reported
logprobs remain those of the model's own distribution. SGLang's own penalties and biases would
change the logprobs, and its grammars need a tokenizer in the server. Requests pass these settings
as parameters of a custom logits processor, because only those reach the sampler. The processor
itself does nothing, and no code from requests is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from ajet_sglang_weights import tell_loaded_weights
from ajet_shaping import Grammars, Placed
from sglang.srt.layers.sampler import Sampler, register_sampler_backend
from sglang.srt.managers.scheduler import run_scheduler_process
from sglang.srt.runtime_context import get_server_args
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

PROCESSOR = "ajet_shaping"
_BACKENDS = ("flashinfer", "pytorch")
_REQUEST, _STATE = "__req__", "__ajet__"


class Nothing(CustomLogitProcessor):  # type: ignore[misc]
    """A logits processor that leaves the logits unchanged."""

    def __call__(
        self,
        logits: torch.Tensor,
        custom_param_list: list[dict[str, Any]] | None = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """Return the logits [B, V] unchanged."""
        return logits

    @classmethod
    def from_str(cls, json_str: str) -> Nothing:  # noqa: ARG003
        """Return an instance, ignoring the text: SGLang would run the code in it."""
        return cls()


class ShapingSampler(Sampler):  # type: ignore[misc]
    """SGLang's sampler, applied to shaped logits."""

    def __init__(self) -> None:
        super().__init__()
        self._grammars: Grammars | None = None

    def forward(
        self, logits_output: Any, sampling_info: Any, *rest: Any, **named: Any
    ) -> torch.Tensor:
        """Return [B] sampled ids; `rest` ends with the positions [B] of the previous tokens."""
        logits, positions = logits_output.next_token_logits, rest[-1]
        requests = list(self._requests(sampling_info, logits.shape[-1]))
        if not requests:
            plain: torch.Tensor = super().forward(logits_output, sampling_info, *rest, **named)
            return plain
        said, places, shaped = logits.clone(), positions.tolist(), list[tuple[int, Placed]]()
        for row, request, known in requests:
            # SGLang discards what it samples before the end of the tokens that are already known.
            added = request.row(places[row]) if places[row] + 1 >= known else None
            if added is not None:
                logits[row] += torch.from_numpy(added).to(logits.device)
                shaped.append((row, request))
        named["logprob_logits"] = said
        ids: torch.Tensor = super().forward(logits_output, sampling_info, *rest, **named)
        sampled = ids.tolist() if shaped else []
        for row, request in shaped:
            request.sampled(places[row], sampled[row])
        return ids

    def _requests(self, info: Any, size: int) -> Iterator[tuple[int, Placed, int]]:
        """Iterate over the shaped requests, as (row, request, number of known tokens)."""
        if not info.has_custom_logit_processor:
            return
        if self._grammars is None:
            self._grammars = Grammars(get_server_args().model_path, size)
        for row, parameters in enumerate(info.custom_params):
            if not parameters or PROCESSOR not in parameters:
                continue
            request = parameters[_REQUEST]
            try:
                prompt_ids, sampled = request.origin_input_ids, len(request.output_ids)
            except ReferenceError:
                # The request has ended, but SGLang still computes its next token.
                continue
            if _STATE not in parameters:
                said = parameters[PROCESSOR]
                parameters[_STATE] = Placed(said, self._grammars, list(prompt_ids))
            yield row, parameters[_STATE], len(prompt_ids) + sampled


def run_scheduler(*arguments: Any, **named: Any) -> Any:
    """Run SGLang's scheduler with `ShapingSampler` and with reports of the loaded weights."""
    accept_no_code()
    tell_loaded_weights()
    for backend in _BACKENDS:
        register_sampler_backend(backend, ShapingSampler)
    return run_scheduler_process(*arguments, **named)


def accept_no_code() -> None:
    """Make SGLang construct only `Nothing` from the logits processors that requests name."""
    CustomLogitProcessor.from_str = Nothing.from_str
