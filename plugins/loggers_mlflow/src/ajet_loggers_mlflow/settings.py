"""Settings of the logger."""

from __future__ import annotations

from pydantic import Field, field_validator

from ajet_core.interfaces import ComponentSettings

OWN_TAGS = ("ajet.", "mlflow.")


class MlflowSettings(ComponentSettings):
    """Settings of the logger for MLflow.

    :param tracking_uri: where MLflow keeps its runs, such as ``http://127.0.0.1:5000``; a SQLite
        file in the run directory if it is empty.
    :param experiment: name of the MLflow experiment; it is created if it does not exist.
    :param run_name: name of the MLflow run; the id of agentjet's run if it is empty.
    :param tags: tags of the MLflow run.
    """

    tracking_uri: str = ""
    experiment: str = Field(default="agentjet", min_length=1)
    run_name: str = ""
    tags: dict[str, str] = Field(default_factory=dict)

    @field_validator("tags")
    @classmethod
    def _no_tags_of_others(cls, tags: dict[str, str]) -> dict[str, str]:
        for name in tags:
            if not name or name.startswith(OWN_TAGS):
                raise ValueError(f"{name!r} is reserved or empty: tags need other names")
        return tags
