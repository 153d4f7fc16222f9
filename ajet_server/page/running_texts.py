"""The texts of running calls, as a viewer gets them piece by piece."""

from __future__ import annotations

from codecs import IncrementalDecoder, getincrementaldecoder
from dataclasses import dataclass, field

from ajet_server.gateway.running_calls import RunningCall, RunningSnapshot
from ajet_server.page.conversation import said_message
from ajet_server.page.models import RunningText, RunningTexts
from ajet_server.page.token_texts import TokenTexts


@dataclass(slots=True)
class _SeenByViewer:
    """What the viewer has of a call; a character may end in tokens that follow."""

    tokens: int = 0
    decoder: IncrementalDecoder = field(
        default_factory=lambda: getincrementaldecoder("utf-8")("replace")
    )


class RunningReader:
    """Turns looks at the running calls of an episode into what is new for one viewer."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._seen: dict[str, _SeenByViewer] = {}
        self._last: tuple[list[str], int] | None = None

    @property
    def seen(self) -> dict[str, int]:
        """As for `RunningCalls.look`."""
        return {call_id: seen.tokens for call_id, seen in self._seen.items()}

    def news(self, look: RunningSnapshot) -> RunningTexts | None:
        """Return what is new since the last look; None if nothing is."""
        ids = [call.call_id for call in look.calls]
        same = (ids, look.more) == self._last
        self._last = ids, look.more
        self._seen = {call_id: self._seen.get(call_id, _SeenByViewer()) for call_id in ids}
        if same and all(call.tokens == self._seen[call.call_id].tokens for call in look.calls):
            return None
        return RunningTexts(calls=[self._news_of(call) for call in look.calls], more=look.more)

    def _news_of(self, call: RunningCall) -> RunningText:
        seen = self._seen[call.call_id]
        if call.tokens < seen.tokens:
            # Another call with the same id; the next look returns it from its beginning.
            seen = self._seen[call.call_id] = _SeenByViewer()
            first, ids = 0, []
        else:
            first, ids = call.tokens - len(call.ids), call.ids
        if first > seen.tokens:
            seen.decoder.reset()
        seen.tokens = first + len(ids)
        return RunningText(
            call_id=call.call_id,
            agent=call.agent,
            at=call.began_at,
            tokens=call.tokens,
            version=call.version,
            first=first,
            text=seen.decoder.decode(self._texts.bytes_of(ids)),
            messages=[said_message(message) for message in call.messages],
            omitted=call.omitted,
        )
