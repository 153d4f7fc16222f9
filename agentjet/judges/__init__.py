"""Judges, which reward results: by comparison with an answer, or by asking a model.

The judge ``unit_tests`` is in `ajet_exec`, whose sandboxes it needs.


```python
from agentjet import train, trainable
from agentjet.judges import ChoiceCriterion, RankingJudge, RankingJudgeSettings, RubricJudge

judge = RankingJudge(RankingJudgeSettings(base_url=URL, model="large"))

@trainable(group_reward=judge)
async def summarise(task): ...
```
"""

from agentjet.judges.answers import (
    ExactJudge,
    ExactJudgeSettings,
    NumberJudge,
    NumberJudgeSettings,
)
from agentjet.judges.calibration import Calibration, calibrate
from agentjet.judges.comparing import (
    RegexJudge,
    RegexJudgeSettings,
    SchemaJudge,
    SchemaJudgeSettings,
    SymbolicJudge,
    SymbolicJudgeSettings,
)
from agentjet.judges.model import JudgeFailedError, ModelJudgeSettings
from agentjet.judges.ranking import RankingJudge, RankingJudgeSettings
from agentjet.judges.rubric import ChoiceCriterion, RubricJudge, RubricJudgeSettings

__all__ = [
    "Calibration",
    "ChoiceCriterion",
    "ExactJudge",
    "ExactJudgeSettings",
    "JudgeFailedError",
    "ModelJudgeSettings",
    "NumberJudge",
    "NumberJudgeSettings",
    "RankingJudge",
    "RankingJudgeSettings",
    "RegexJudge",
    "RegexJudgeSettings",
    "RubricJudge",
    "RubricJudgeSettings",
    "SchemaJudge",
    "SchemaJudgeSettings",
    "SymbolicJudge",
    "SymbolicJudgeSettings",
    "calibrate",
]
