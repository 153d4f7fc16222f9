"""Measure the claims of agentjet, and write docs/evidence.md: `evidence.py run NAME...`.

`claims.toml` declares each claim with the command that shows it. `run` runs these commands and
writes their results as records to `results/evidence`: with date, machine, commit and the values of
each seed. `write` makes docs/evidence.md from claims and records; it needs no measurement, and
`make generate` runs it too. `list` shows the names, commands and what was measured. `adopt NAME
FILE` makes a record of a file in `results` that is older than the records.

Names are those of measurements; `all` runs all, and `missing` those without a record. Where other
programs on the machine change the figures, the list notes it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence

from claims import (
    ROOT,
    Claim,
    Figure,
    Measurement,
    Record,
    adopted,
    curve,
    figure,
    holds,
    measure,
    read_claims,
    read_record,
    write_record,
)

PAGE = ROOT / "docs" / "evidence.md"
INTRODUCTION = """\
# Evidence

<!-- benchmarks/evidence.py writes this page from benchmarks/claims.toml and from the records in
benchmarks/results/evidence: run `make generate`. -->

Every claim about agentjet, with the command that shows it and the figure as it came out. The last
table has the command, date, machine and commit of each measurement. To measure one again, and to
write this page:

```
python benchmarks/evidence.py run NAME
python benchmarks/evidence.py write
```

Intervals are of 95 %: for a mean, Student's t over the values; for a rate, that of Clopper and
Pearson; a single value has none. `n` is the number of values, which are seeds or repetitions, or of
trials. A difference should be 0: it holds if its interval contains 0. Beside the success of a
trained model is its curve: the mean success of training episodes by step, from 0 to 1.

A claim of another project has its name: its figure is ours, from this repository. "Not measured"
are claims whose measurement has no record yet. The commit is that of the tree that was measured,
with "+" if it had changes; of results that are older than these records, it is the one that added
them.
"""
# Of a share, from 0 to 1.
_HEIGHTS = "▁▂▃▄▅▆▇█"
_WIDTH = 15
NOT_MEASURED = "not measured"


def page() -> str:
    """Return the text of the page."""
    measurements, claims = read_claims()
    records = {name: read_record(name) for name in measurements}
    text = INTRODUCTION
    for section, own in itertools.groupby(claims, lambda claim: claim.section):
        text += f"\n## {section}\n\n"
        text += "| claim | figure | 95 % interval | n | bar | holds | measurement |\n"
        text += "|---|---|---|---|---|---|---|\n"
        for claim in own:
            text += _row(claim, records[claim.measurement])
    text += "\n## Measurements\n\n"
    text += (
        "| measurement | command | date | machine | commit | seconds |\n|---|---|---|---|---|---|\n"
    )
    for name, measurement in measurements.items():
        text += _measurement_row(measurement, records[name])
    return text


def _row(claim: Claim, record: Record | None) -> str:
    by = f" ({claim.of})" if claim.of else ""
    bar = "contains 0" if claim.statistic == "difference" else claim.bar
    link = f"[{claim.measurement}](#measurements)"
    if record is None:
        cells = [NOT_MEASURED, "", "", bar, "", link]
    else:
        runs = record.runs()
        found = figure(claim, runs)
        value = _shown(found.value, claim.unit)
        if claim.statistic == "most":
            value = f"at most {value}"
        if steps := curve(claim, runs):
            value += f" `{_drawn(steps)}`"
        met = {True: "yes", False: "**no**", None: ""}[holds(claim, found)]
        cells = [value, _interval(found), str(found.count), bar, met, link]
    return f"| {claim.text}{by} | {' | '.join(cells)} |\n"


def _measurement_row(measurement: Measurement, record: Record | None) -> str:
    command = measurement.command
    if measurement.seeds:
        first, last = measurement.seeds[0], measurement.seeds[-1]
        command = command.replace("{seed}", f"{first}..{last}")
    cells = [measurement.name, f"`{command}`"]
    if record is None:
        cells += [NOT_MEASURED, "", "", ""]
    else:
        seconds = "" if record.seconds is None else f"{record.seconds:.0f}"
        cells += [record.date, record.machine, record.commit, seconds]
    return f"| {' | '.join(cells)} |\n"


def _shown(value: float, unit: str) -> str:
    return f"{value:.4g} {unit}".strip()


def _drawn(steps: Sequence[float]) -> str:
    """Draw a curve of shares, in at most `_WIDTH` characters that are means of the steps."""
    width = min(_WIDTH, len(steps))
    bounds = [len(steps) * number // width for number in range(width + 1)]
    parts = [statistics.mean(steps[a:b]) for a, b in itertools.pairwise(bounds)]
    return "".join(_HEIGHTS[min(len(_HEIGHTS) - 1, int(x * len(_HEIGHTS)))] for x in parts)


def _interval(found: Figure) -> str:
    if found.interval is None:
        return ""
    low, high = found.interval
    return f"{low:.4g} to {high:.4g}"


def _chosen(names: list[str], measurements: dict[str, Measurement]) -> list[Measurement]:
    if names == ["all"]:
        return list(measurements.values())
    if names == ["missing"]:
        return [each for each in measurements.values() if read_record(each.name) is None]
    if unknown := [name for name in names if name not in measurements]:
        sys.exit(f"evidence.py: no measurement {unknown[0]!r}; known: {', '.join(measurements)}")
    return [measurements[name] for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure, and write records")
    run.add_argument("names", nargs="+")
    adopt = commands.add_parser("adopt", help="make a record of an older result")
    adopt.add_argument("name")
    adopt.add_argument("file", help="name of a file in benchmarks/results")
    commands.add_parser("write", help="write docs/evidence.md")
    commands.add_parser("list", help="show the measurements")
    options = parser.parse_args()
    measurements, _ = read_claims()
    if options.command == "list":
        for measurement in measurements.values():
            record = read_record(measurement.name)
            state = NOT_MEASURED if record is None else record.date
            quiet = "quiet machine" if measurement.quiet else "any machine"
            print(f"{measurement.name:24} {state:12} {quiet:14} {measurement.command}")
    elif options.command == "adopt":
        (measurement,) = _chosen([options.name], measurements)
        write_record(options.name, adopted(measurement, options.file))
    elif options.command == "run":
        for measurement in _chosen(options.names, measurements):
            print(f"{measurement.name}: {measurement.command}", file=sys.stderr)
            write_record(measurement.name, measure(measurement))
    if options.command != "list":
        PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
