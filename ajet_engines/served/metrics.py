"""Merging of metrics of several servers."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

LABEL = "replica"
_log = logging.getLogger("ajet.served")


def labelled(texts: Mapping[int, str]) -> str:
    """Merge metrics of servers, each sample labelled with the server's number as ``replica``.

    :param texts: by number, in the text format of Prometheus; invalid texts are skipped.
    """
    families: dict[str, Metric] = {}
    for number, text in sorted(texts.items()):
        try:
            parsed = list(text_string_to_metric_families(text))
        except ValueError as error:
            _log.warning("cannot read the metrics of server %d: %s", number, error)
            continue
        for its_family in parsed:
            family = families.setdefault(
                its_family.name, Metric(its_family.name, its_family.documentation, its_family.type)
            )
            for sample in its_family.samples:
                family.samples.append(sample._replace(labels={**sample.labels, LABEL: str(number)}))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(list(families.values())))
    return generate_latest(registry).decode()


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families

    def describe(self) -> list[Metric]:
        # The registry is used only once, so it needs no description.
        return []
