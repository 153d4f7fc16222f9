"""The history of comparisons: rows of JSON that are only appended.

Absolute values of two rows say nothing about each other: machines and their load differ. What can
be compared is the ratio of a row, whose two versions were measured by turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic import ValidationError as InvalidModelError

from ajet_core.errors import ConfigError
from ajet_core.files import write_whole
from ajet_research.inference import Verdict

VersionStatus = Literal["regressed", "not worse", "undecided", "invalid"]


class VersionRow(BaseModel):
    """What one study says about a measure of two versions.

    Pairs are of the baseline and of the candidate.

    :param date: of the study's end, in UTC.
    :param agentjet: what the versions call themselves.
    :param commits: their commits; with ``+`` if the tree had changes, "" for wheels.
    :param machine: what figures depend on, with its fingerprint.
    :param values: by seed, the measured values; None where the version failed.
    :param ratio: of the candidate's cost to the baseline's, or their difference if the measure is
        not relative; `low` and `high` are the ends of its interval with confidence 1 - `alpha`.
    :param failed: trials in which a version failed.
    :param ledger: the last hash of the study's ledger.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    schema_version: Literal[1] = 1
    date: str
    measure: str
    unit: str
    margin: float
    relative: bool
    baseline: str
    candidate: str
    agentjet: tuple[str, str]
    commits: tuple[str, str]
    machine: dict[str, str]
    seeds: list[int]
    values: tuple[list[float | None], list[float | None]]
    ratio: float | None
    low: float | None
    high: float | None
    alpha: float
    verdict: Verdict
    status: VersionStatus
    failed: int
    ledger: str


def read_history(path: Path) -> list[VersionRow]:
    """Return all rows, the oldest first; none if there is no file.

    :raises ConfigError: a row cannot be decoded; the message has its line.
    """
    rows: list[VersionRow] = []
    if not path.exists():
        return rows
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            rows.append(VersionRow.model_validate_json(line))
        except InvalidModelError as error:
            what = error.errors()[0]["msg"]
            raise ConfigError(f"{path}, line {number} is not a row of a history: {what}") from error
    return rows


def append_history(path: Path, rows: Sequence[VersionRow]) -> int:
    """Append rows whose studies are not in the history yet; return how many were.

    The file is replaced as a whole, so that a killed process leaves no half row.

    :raises ConfigError: the history cannot be decoded; nothing is changed.
    """
    present = {row.ledger for row in read_history(path)}
    new = [row for row in rows if row.ledger not in present]
    if new:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else b""
        if before and not before.endswith(b"\n"):
            before += b"\n"
        lines = "".join(f"{row.model_dump_json()}\n" for row in new)
        write_whole(path, before + lines.encode(), mode=0o644)
    return len(new)
