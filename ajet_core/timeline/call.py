"""What the gateway records of one model call."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Call:
    """One model call, token by token.

    With P prompt tokens and T sampled tokens:

    :param call_id: unique in the store.
    :param episode_id: the episode whose key paid for the call.
    :param index: 0-based order of the call's completion within its episode.
    :param agent: name of the agent that made the call, "" if it gave none.
    :param prompt_ids: [P] the exact token ids the engine was given.
    :param sampled_ids: [T] the token ids it sampled, the stop token included.
    :param logprobs: [T] natural-log probability of each sampled token under the distribution that
        was sampled from: logits divided by `temperature` (by 1 if that is 0), over the full
        vocabulary, before top-p or top-k cut it.
    :param policy_versions: [T] version of the weights that sampled each token.
    :param temperature: 0 means greedy.
    :param finish_reason: "stop", "length", or "abort" (the client went away).
    :param parent_call_id: the call whose tokens (prompt + sampled) `prompt_ids` extends, if known.
    :param created_at: unix seconds.
    """

    call_id: str
    episode_id: str
    index: int
    prompt_ids: list[int]
    sampled_ids: list[int]
    logprobs: list[float]
    policy_versions: list[int]
    temperature: float
    finish_reason: str
    agent: str = ""
    parent_call_id: str | None = None
    created_at: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    metadata: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sampled = len(self.sampled_ids)
        if len(self.logprobs) != sampled or len(self.policy_versions) != sampled:
            raise ValueError(
                f"call {self.call_id}: {sampled} sampled tokens, but {len(self.logprobs)} logprobs "
                f"and {len(self.policy_versions)} policy versions"
            )

    @property
    def token_ids(self) -> list[int]:
        """[P + T] prompt and sampled tokens."""
        return self.prompt_ids + self.sampled_ids
