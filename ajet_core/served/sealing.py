"""What an engine's servers have proven of the weights that they serve."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ajet_core.errors import SealError
from ajet_core.in_server.ajet_checksums import OTHERWISE
from ajet_core.interfaces import SealReport, WeightUpdate
from ajet_core.seal import check_seal
from ajet_core.served.replica import Replica


def of_all_ranks(told: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The checksums of a server of several processes, which are all given whole tensors.

    What not all have loaded is left out, and what they do not agree on was not loaded as it was published.
    """
    names = set(told[0]).intersection(*told[1:]) if told else set()
    found = {}
    for name in names:
        values = {rank[name] for rank in told}
        found[name] = values.pop() if len(values) == 1 else OTHERWISE
    return found


class Sealing:
    """Compares what servers have loaded with what was published, and remembers the outcome.

    :param name: of the engine.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # By number of the replica, the number of tensors that its present server has proven.
        self._proven: dict[int, int] = {}
        self._seconds = 0.0
        self._breaches: list[str] = []

    async def prove(self, one: Replica, update: WeightUpdate, before: WeightUpdate | None) -> None:
        """Have a halted server tell the checksums of what it has loaded.

        :param before: the update before, for the message.
        :raises SealError: it does not have what was published; the server must not be sent requests.
        """
        self._proven.pop(one.number, None)
        if not update.checksums:
            return
        began = time.perf_counter()
        try:
            served = await one.server.checksums()
            if served is None:
                return
            check_seal(update, served, f"server {one.number} of {self._name}", before)
            self._proven[one.number] = len(update.checksums)
        except SealError as error:
            self._breaches.append(error.message)
            raise
        finally:
            # Servers prove it at the same time.
            self._seconds = max(self._seconds, time.perf_counter() - began)

    def report(self, policy_version: int, up: list[Replica]) -> SealReport:
        """What has been proven; seconds and breaches are told once.

        :param up: servers that are sent requests.
        """
        proven = [self._proven[one.number] for one in up if one.number in self._proven]
        whole = bool(proven) and len(proven) == len(up)
        seconds, breaches = self._seconds, tuple(self._breaches)
        self._seconds, self._breaches = 0.0, []
        return SealReport(
            policy_version,
            "checksums" if whole else "none",
            min(proven, default=0),
            len(proven),
            seconds,
            breaches,
        )
