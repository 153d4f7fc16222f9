"""Episodes of any program: it runs in a sandbox, and a second one rewards what it left behind.

```python
from ajet_exec import BoxedProgram, ProgramTerms, load_sandbox

terms = ProgramTerms(argv=("my-agent", "{prompt}"), reward=("./grade.sh",), files=Path("repo"))
async with AsyncSwarmClient() as client:
    program = BoxedProgram(terms, load_sandbox("bubblewrap"), client)
    await train_async(program, read_tasks("jsonl", "tasks.jsonl"), client=client)
```

The command ``ajet exec`` does it without Python.
"""

from ajet_exec.disk import DiskBudgetError, DiskFullError, missing_room
from ajet_exec.endpoint import port_of, relay
from ajet_exec.grading import GradingError, ProgramResult
from ajet_exec.launcher import BoxedProgram, NoCallsError
from ajet_exec.profiles import EndpointProfile, filled, introduced, load_profiles
from ajet_exec.sandboxes import load_sandbox
from ajet_exec.terms import ProgramTerms
from ajet_exec.workshop import Workshop

__all__ = [
    "BoxedProgram",
    "DiskBudgetError",
    "DiskFullError",
    "EndpointProfile",
    "GradingError",
    "NoCallsError",
    "ProgramResult",
    "ProgramTerms",
    "Workshop",
    "filled",
    "introduced",
    "load_profiles",
    "load_sandbox",
    "missing_room",
    "port_of",
    "relay",
]
