"""Metrics of several servers as those of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ajet_engines.served.metrics import labelled
from ajet_testing.suites.asking import ask
from tests.served.fake_server import FakeServer, started

HISTOGRAM = """# HELP took Seconds.
# TYPE took histogram
took_bucket{le="1.0"} 1.0
took_bucket{le="+Inf"} 2.0
took_sum 3.5
took_count 2.0
# HELP load Requests.
# TYPE load gauge
load{engine="0"} 4.0
"""


def test_samples_keep_their_labels_and_kinds_and_say_whose_they_are() -> None:
    found = {
        f.name: f for f in text_string_to_metric_families(labelled({0: HISTOGRAM, 2: HISTOGRAM}))
    }
    assert {name: family.type for name, family in found.items()} == {
        "took": "histogram",
        "load": "gauge",
    }
    assert [sample.labels for sample in found["load"].samples] == [
        {"engine": "0", "replica": "0"},
        {"engine": "0", "replica": "2"},
    ]
    assert len(found["took"].samples) == 8
    assert all(sample.value == 3.5 for sample in found["took"].samples if sample.name == "took_sum")


def test_without_servers_there_is_nothing() -> None:
    assert labelled({}) == ""


def test_what_is_no_exposition_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    text = "# TYPE tokens counter\ntokens_total 3.0\n"
    told = labelled({0: "<html>not an exposition</html>", 1: text})
    (family,) = text_string_to_metric_families(told)
    assert [sample.labels for sample in family.samples] == [{"replica": "1"}]
    assert "cannot read the metrics of server 0" in caplog.text


async def test_servers_that_do_not_answer_are_left_out(tmp_path: Path) -> None:
    engine = await started(tmp_path, 2)
    await ask(engine, [1], max_tokens=5)
    one = engine.fleet.replicas[0].server
    assert isinstance(one, FakeServer)
    one.dead = True
    (family,) = text_string_to_metric_families(await engine.metrics())
    assert [sample.labels for sample in family.samples] == [{"model": "m", "replica": "1"}]
    await engine.close()
