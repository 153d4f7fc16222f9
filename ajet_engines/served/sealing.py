"""Proofs of the weights that an engine's servers serve."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ajet_core.errors import SealError
from ajet_core.interfaces import SealReport, WeightUpdate
from ajet_engines.in_server.ajet_checksums import OTHERWISE
from ajet_engines.probe import ProbeWatch
from ajet_engines.seal import check_seal
from ajet_engines.served.replica import Replica

__all__ = ["Sealing", "of_all_ranks"]


def of_all_ranks(ranks: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Combine the checksums of a server's processes, each of which loads whole tensors.

    Tensors not loaded by all processes are omitted; those with different checksums are `OTHERWISE`.
    """
    names = set(ranks[0]).intersection(*ranks[1:]) if ranks else set()
    checksums = {}
    for name in names:
        values = {rank[name] for rank in ranks}
        checksums[name] = values.pop() if len(values) == 1 else OTHERWISE
    return checksums


class Sealing:
    """Compares loaded weights with published ones, and keeps the results.

    :param name: name of the engine.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # Proofs of the current servers, by number of the replica.
        self._proofs: dict[int, SealReport] = {}
        # By number of the replica: all its servers compute alike.
        self._probes: dict[int, ProbeWatch] = defaultdict(ProbeWatch)
        self._seconds = 0.0
        self._breaches: list[str] = []

    async def prove(self, one: Replica, update: WeightUpdate, before: WeightUpdate | None) -> None:
        """Check the weights of a halted server by checksums or the probe.

        :param before: the previous update, for the message.
        :raises SealError: they are not the published ones; the server must not receive requests.
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
            # Servers are checked concurrently.
            self._seconds = max(self._seconds, time.perf_counter() - began)

    async def _proof(
        self, one: Replica, update: WeightUpdate, before: WeightUpdate | None
    ) -> SealReport | None:
        """Check one server; return None if nothing can be compared.

        :raises SealError: as for `prove`.
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
        """Return the proofs so far; seconds and breaches are reported only once.

        :param up: servers that receive requests.
        """
        proofs = [self._proofs[one.number] for one in up if one.number in self._proofs]
        proven = [proof for proof in proofs if proof.proof != "none"]
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
            min((proof.change for proof in proofs if proof.noise), default=0.0),
            max((proof.noise for proof in proofs), default=0.0),
        )
