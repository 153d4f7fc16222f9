"""Runs in the scheduler processes of SGLang. Nothing of agentjet is imported here.

Penalties, biases and grammars of requests are applied where tokens are sampled, and the logprobs that are answered stay
those of what the model said. SGLang's own would be those of what is drawn from, and its grammars need a tokenizer in the
server. Requests carry theirs as parameters of a logits processor, because those alone come as far as the sampler; the
processor itself does nothing, and no code is taken from requests.
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
    """Leaves the logits as they are."""

    def __call__(
        self,
        logits: torch.Tensor,
        custom_param_list: list[dict[str, Any]] | None = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """[B, V] as given."""
        return logits

    @classmethod
    def from_str(cls, json_str: str) -> Nothing:  # noqa: ARG003
        """The one that there is: SGLang would run what code the text has."""
        return cls()


class ShapingSampler(Sampler):  # type: ignore[misc]
    """Samples as SGLang's does, from logits that are shaped."""

    def __init__(self) -> None:
        super().__init__()
        self._grammars: Grammars | None = None

    def forward(
        self, logits_output: Any, sampling_info: Any, *rest: Any, **named: Any
    ) -> torch.Tensor:
        """[B] sampled ids. The last of the `rest` are the positions [B] of the tokens before."""
        logits, positions = logits_output.next_token_logits, rest[-1]
        requests = list(self._requests(sampling_info, logits.shape[-1]))
        if not requests:
            plain: torch.Tensor = super().forward(logits_output, sampling_info, *rest, **named)
            return plain
        said, places, shaped = logits.clone(), positions.tolist(), list[tuple[int, Placed]]()
        for row, request, known in requests:
            # What is sampled in the middle of what is known already is thrown away by SGLang.
            added = request.row(places[row]) if places[row] + 1 >= known else None
            if added is not None:
                logits[row] += torch.from_numpy(added).to(logits.device)
                shaped.append((row, request))
        named["logprob_logits"] = said
        ids: torch.Tensor = super().forward(logits_output, sampling_info, *rest, **named)
        told = ids.tolist() if shaped else []
        for row, request in shaped:
            request.sampled(places[row], told[row])
        return ids

    def _requests(self, info: Any, size: int) -> Iterator[tuple[int, Placed, int]]:
        """(row, request, tokens that it is known to have) of those that are shaped."""
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
                # It is over; SGLang computes its next token nevertheless.
                continue
            if _STATE not in parameters:
                said = parameters[PROCESSOR]
                parameters[_STATE] = Placed(said, self._grammars, list(prompt_ids))
            yield row, parameters[_STATE], len(prompt_ids) + sampled


def run_scheduler(*arguments: Any, **named: Any) -> Any:
    """SGLang's scheduler with `ShapingSampler`, which tells what it has loaded."""
    accept_no_code()
    tell_loaded_weights()
    for backend in _BACKENDS:
        register_sampler_backend(backend, ShapingSampler)
    return run_scheduler_process(*arguments, **named)


def accept_no_code() -> None:
    """Have SGLang make nothing of what requests give for a logits processor but `Nothing`."""
    CustomLogitProcessor.from_str = Nothing.from_str
