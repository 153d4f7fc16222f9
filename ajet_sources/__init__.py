"""Task sources: other people's tasks and graders, trained and measured with one command.

```python
from agentjet import AsyncSwarmClient
from ajet_sources import load_source, train_source

async with AsyncSwarmClient() as client, load_source("rows.jsonl?judge=number") as source:
    await train_source(source, client=client, epochs=3)
```

The commands ``ajet train``, ``ajet eval`` and ``ajet check`` do it without Python.
"""

from ajet_sources.catalogue import CatalogueEntry, catalogue, entries_of, licence_of
from ajet_sources.checking import SourceCheck, TaskCheck, TaskFinding, check_source, check_task
from ajet_sources.evaluating import (
    EpisodeFile,
    EvaluatedEpisode,
    ModelEvaluation,
    compared,
    evaluate_source,
    rescore,
)
from ajet_sources.names import SourceName, load_source, parse_source
from ajet_sources.questions import QuestionSource, ask, chat
from ajet_sources.training import SourceProgram, chosen_tasks, train_source
from ajet_sources.turns import Play, Turn, TurnSettings, TurnSource, action_in

__all__ = [
    "CatalogueEntry",
    "EpisodeFile",
    "EvaluatedEpisode",
    "ModelEvaluation",
    "Play",
    "QuestionSource",
    "SourceCheck",
    "SourceName",
    "SourceProgram",
    "TaskCheck",
    "TaskFinding",
    "Turn",
    "TurnSettings",
    "TurnSource",
    "action_in",
    "ask",
    "catalogue",
    "chat",
    "check_source",
    "check_task",
    "chosen_tasks",
    "compared",
    "entries_of",
    "evaluate_source",
    "licence_of",
    "load_source",
    "parse_source",
    "rescore",
    "train_source",
]
