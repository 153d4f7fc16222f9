"""Tasks from documents or examples, written by a model at any endpoint.

```python
from ajet_sources.generation import (
    GenerationLimits, GenerationPlan, generate_tasks, read_documents, read_prompt
)

plan = GenerationPlan(
    model="large", prompt=read_prompt("documents"), parts=read_documents([Path("docs")], 6000)
)
report = await generate_tasks(plan, Path("rows.jsonl"), endpoint, GenerationLimits(requests=100))
```

The command ``ajet generate`` does it without Python.
"""

from ajet_sources.generation.documents import DocumentPart, read_documents
from ajet_sources.generation.duplicates import SeenTexts
from ajet_sources.generation.generating import generate_tasks
from ajet_sources.generation.plan import (
    GenerationLimits,
    GenerationPlan,
    GenerationReport,
    SolveRate,
)
from ajet_sources.generation.recording import AnswerRecording, RowFile
from ajet_sources.generation.task_prompt import TaskPrompt, read_prompt
from ajet_sources.generation.tasks import WrittenTask

__all__ = [
    "AnswerRecording",
    "DocumentPart",
    "GenerationLimits",
    "GenerationPlan",
    "GenerationReport",
    "RowFile",
    "SeenTexts",
    "SolveRate",
    "TaskPrompt",
    "WrittenTask",
    "generate_tasks",
    "read_documents",
    "read_prompt",
]
