"""What an engine's servers have proven of the weights that they serve."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ajet_core.errors import SealError
from ajet_core.interfaces import SealReport, WeightUpdate
from ajet_core.probe import ProbeWatch
from ajet_engines.in_server.ajet_checksums import OTHERWISE
from ajet_engines.seal import check_seal
from ajet_engines.served.replica import Replica


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
        # By number of the replica, what its present server has proven.
        self._proofs: dict[int, SealReport] = {}
        # By number of the replica: its servers all compute alike.
        self._probes: dict[int, ProbeWatch] = defaultdict(ProbeWatch)
        self._seconds = 0.0
        self._breaches: list[str] = []

    async def prove(self, one: Replica, update: WeightUpdate, before: WeightUpdate | None) -> None:
        """Have a halted server tell the checksums of what it has loaded, or what it says to the probe.

        :param before: the update before, for the message.
        :raises SealError: it does not have what was published; the server must not be sent requests.
        """
        self._proofs.pop(one.number, None)
        began = time.perf_counter()
        try:
            if (proof := await self._proof(one, update, before)) is not None:
                self._proofs[one.number] = proof
        except SealError as error:
            self._breaches.append(error.message)
            raise
        finally:
            # Servers prove it at the same time.
            self._seconds = max(self._seconds, time.perf_counter() - began)

    async def _proof(
        self, one: Replica, update: WeightUpdate, before: WeightUpdate | None
    ) -> SealReport | None:
        """None if nothing can be compared.

        :raises SealError: as `prove`.
        """
        who = f"server {one.number} of {self._name}"
        if update.checksums and (served := await one.server.checksums()) is not None:
            check_seal(update, served, who, before)
            return SealReport(update.policy_version, "checksums", len(update.checksums), servers=1)
        if update.probe is not None:
            scored = await one.server.score(update.probe.token_ids)
            if scored is not None:
                return self._probes[one.number].check(update, scored, who)
        return None

    def report(self, policy_version: int, up: list[Replica]) -> SealReport:
        """What has been proven; seconds and breaches are told once.

        :param up: servers that are sent requests.
        """
        found = [self._proofs[one.number] for one in up if one.number in self._proofs]
        proven = [proof for proof in found if proof.proof != "none"]
        whole = bool(proven) and len(proven) == len(up)
        seconds, breaches = self._seconds, tuple(self._breaches)
        self._seconds, self._breaches = 0.0, []
        return SealReport(
            policy_version,
            proven[0].proof if whole else "none",
            min((proof.tensors for proof in proven), default=0),
            len(proven),
            seconds,
            breaches,
            min((proof.change for proof in found if proof.noise), default=0.0),
            max((proof.noise for proof in found), default=0.0),
        )
