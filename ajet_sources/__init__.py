"""Task sources: other people's tasks and graders, trained and measured with one command.

```python
from ajet_sources import load_source, train_source

async with load_source("rows.jsonl?judge=number") as source:
    await train_source(source, epochs=3)
```

The commands ``ajet train``, ``ajet eval`` and ``ajet check`` do it without Python.
"""

from ajet_sources.names import SourceName, load_source, parse_source
from ajet_sources.questions import QuestionSource, ask

__all__ = [
    "QuestionSource",
    "SourceName",
    "ask",
    "load_source",
    "parse_source",
]
