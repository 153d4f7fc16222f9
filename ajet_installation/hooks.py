"""Built-in components and commands, registered like those of plugins. Imports none of them."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin.components import (
    AdvantageSpec,
    CommandSpec,
    JudgeSpec,
    LoggerSpec,
    MergerSpec,
    ReaderSpec,
    SandboxSpec,
    SourceSpec,
    StoreSpec,
    WorldSpec,
)
from ajet_core.plugin.spec import hookimpl


@hookimpl
def ajet_register_stores() -> Sequence[StoreSpec]:
    """The store ``sqlite``."""
    return (
        StoreSpec(
            name="sqlite",
            target="ajet_server.store.sqlite_store:SqliteStore",
            settings="ajet_server.embedded.settings:SqliteStoreSettings",
            summary="One SQLite file in the run directory, written in groups",
        ),
    )


@hookimpl
def ajet_register_mergers() -> Sequence[MergerSpec]:
    """The merger ``trie``."""
    return (
        MergerSpec(
            name="trie",
            target="ajet_server.embedded.trie_merger:TrieMerger",
            settings="ajet_server.embedded.settings:TrieMergerSettings",
            summary="A token tree: every distinct context of an episode once",
        ),
    )


@hookimpl
def ajet_register_advantages() -> Sequence[AdvantageSpec]:
    """Three estimators that compare rewards with those of the task's other episodes."""
    return (
        AdvantageSpec(
            name="group_std",
            target="ajet_training.advantages:GroupStd",
            summary="Relative to the mean of the task, over its standard deviation (GRPO)",
        ),
        AdvantageSpec(
            name="group_mean",
            target="ajet_training.advantages:GroupMean",
            summary="Relative to the mean of the task (Dr. GRPO)",
        ),
        AdvantageSpec(
            name="leave_one_out",
            target="ajet_training.advantages:LeaveOneOut",
            summary="Relative to the mean of the other episodes of the task (RLOO)",
        ),
    )


@hookimpl
def ajet_register_loggers() -> Sequence[LoggerSpec]:
    """The logger ``jsonl``."""
    return (
        LoggerSpec(
            name="jsonl",
            target="ajet_server.embedded.jsonl_logger:JsonlLogger",
            settings="ajet_server.embedded.settings:JsonlLoggerSettings",
            summary="One JSON line per step in metrics.jsonl",
        ),
    )


@hookimpl
def ajet_register_worlds() -> Sequence[WorldSpec]:
    """The worlds of the learning suite."""
    return (
        WorldSpec(
            name="bandit",
            target="ajet_worlds.bandit:BanditWorld",
            summary="One turn: pull arms to find out which one pays for which lamp",
            ability="one turn, learned from noisy rewards alone",
        ),
        WorldSpec(
            name="grid",
            target="ajet_worlds.grid:GridWorld",
            summary="Walk to a goal on a 4 x 4 grid with a tool",
            ability="several turns with a tool, one reward at the end",
        ),
        WorldSpec(
            name="memory",
            target="ajet_worlds.memory:MemoryWorld",
            summary="A key that must be recalled 20 turns later, with a history that is compacted",
            ability="keeping what matters through rewritten histories",
        ),
        WorldSpec(
            name="mine",
            target="ajet_worlds.mine:MineWorld",
            summary="The right tool for each rock, with a cost per call, and when to stop",
            ability="choosing tools and stopping, with rewards of single calls",
        ),
        WorldSpec(
            name="pair",
            target="ajet_worlds.pair:PairWorld",
            summary="A guide and a follower, each with a reward of its own",
            ability="two agents, each trained on its own reward",
        ),
        WorldSpec(
            name="slow-grid",
            target="ajet_worlds.grid:SlowGridWorld",
            settings="ajet_worlds.grid:SlowGridSettings",
            summary="The grid with a tool that is usually quick and sometimes very slow",
            ability="the same, with few slow episodes holding up many",
        ),
    )


@hookimpl
def ajet_register_readers() -> Sequence[ReaderSpec]:
    """The dataset readers ``csv``, ``jsonl`` and ``parquet``."""
    return (
        ReaderSpec(
            name="csv",
            target="agentjet.agents.readers:CsvReader",
            settings="agentjet.agents.readers:CsvReaderSettings",
            summary="Rows of a CSV file whose first row has the names of the columns",
        ),
        ReaderSpec(
            name="jsonl",
            target="agentjet.agents.readers:JsonlReader",
            settings="agentjet.agents.readers:JsonlReaderSettings",
            summary="A file with a JSON object on each line, or with one array of objects",
        ),
        ReaderSpec(
            name="parquet",
            target="agentjet.agents.tables:ParquetReader",
            settings="agentjet.agents.tables:ParquetReaderSettings",
            summary="Rows of a Parquet file, or of an Arrow file of Hugging Face datasets",
        ),
    )


@hookimpl
def ajet_register_judges() -> Sequence[JudgeSpec]:
    """Judges that compare a result with the task's answer, test it, or ask a model."""
    return (
        JudgeSpec(
            name="autoevals",
            target="agentjet.judges.scorers:AutoevalsJudge",
            settings="agentjet.judges.scorers:AutoevalsJudgeSettings",
            summary="The score of a scorer of the library autoevals",
        ),
        JudgeSpec(
            name="exact",
            target="agentjet.judges.answers:ExactJudge",
            settings="agentjet.judges.answers:ExactJudgeSettings",
            summary="1 if the result is the text of the task's answer",
        ),
        JudgeSpec(
            name="json_schema",
            target="agentjet.judges.comparing:SchemaJudge",
            settings="agentjet.judges.comparing:SchemaJudgeSettings",
            summary="1 if the result is JSON that fits a schema",
        ),
        JudgeSpec(
            name="number",
            target="agentjet.judges.answers:NumberJudge",
            settings="agentjet.judges.answers:NumberJudgeSettings",
            summary="1 if the last number of the result is that of the task's answer",
        ),
        JudgeSpec(
            name="regex",
            target="agentjet.judges.comparing:RegexJudge",
            settings="agentjet.judges.comparing:RegexJudgeSettings",
            summary="1 if the result matches a pattern",
        ),
        JudgeSpec(
            name="rubric",
            target="agentjet.judges.rubric:RubricJudge",
            settings="agentjet.judges.rubric:RubricJudgeSettings",
            summary="A model's verdicts on criteria",
        ),
        JudgeSpec(
            name="symbolic",
            target="agentjet.judges.comparing:SymbolicJudge",
            settings="agentjet.judges.comparing:SymbolicJudgeSettings",
            summary="1 if the result equals the task's answer as mathematics",
        ),
        JudgeSpec(
            name="unit_tests",
            target="ajet_exec.unit_tests:UnitTestsJudge",
            settings="ajet_exec.unit_tests:UnitTestsSettings",
            summary="Runs the result, which is code, against tests in a sandbox",
        ),
    )


@hookimpl
def ajet_register_sandboxes() -> Sequence[SandboxSpec]:
    """The sandboxes ``bubblewrap``, ``docker``, ``none`` and ``podman``."""
    return (
        SandboxSpec(
            name="bubblewrap",
            target="ajet_exec.boxes.bubblewrap:BubblewrapSandbox",
            settings="ajet_exec.boxes.bubblewrap:BubblewrapSettings",
            summary="Linux namespaces over the host's own files, without a daemon or an image",
        ),
        SandboxSpec(
            name="docker",
            target="ajet_exec.boxes.containers:DockerSandbox",
            settings="ajet_exec.boxes.containers:ContainerSettings",
            summary="A container of an image, by docker",
        ),
        SandboxSpec(
            name="none",
            target="ajet_exec.boxes.bare:BareSandbox",
            summary="A process group of the host, which separates nothing",
        ),
        SandboxSpec(
            name="podman",
            target="ajet_exec.boxes.containers:PodmanSandbox",
            settings="ajet_exec.boxes.containers:ContainerSettings",
            summary="A container of an image, by podman",
        ),
    )


@hookimpl
def ajet_register_sources() -> Sequence[SourceSpec]:
    """The source ``rows``."""
    return (
        SourceSpec(
            name="rows",
            target="ajet_sources.rows:RowsSource",
            settings="ajet_sources.reading:RowsSettings",
            summary="The rows of a JSON lines or CSV file, with a judge and perhaps a program",
        ),
    )


@hookimpl
def ajet_register_commands() -> Sequence[CommandSpec]:
    """The commands that are registered like those of plugins."""
    return (
        CommandSpec(
            name="train",
            target="ajet_cli.commands.sources.train:train",
            summary="Train on the tasks of a source, such as a benchmark or a file.",
        ),
        CommandSpec(
            name="check",
            target="ajet_cli.commands.sources.check:check",
            summary="Check the tasks of a source and their grader, without a model.",
        ),
        CommandSpec(
            name="eval",
            target="ajet_cli.commands.sources.evaluate:evaluate",
            summary="Measure models on the tasks of a source, with any endpoint.",
        ),
        CommandSpec(
            name="generate",
            target="ajet_cli.commands.sources.generate:generate",
            summary="Let a model write tasks from documents or examples, as rows to train on.",
        ),
        CommandSpec(
            name="report",
            target="ajet_cli.commands.run.report:report",
            summary="Write a run, or a comparison of runs, as one HTML file that you can share.",
        ),
        CommandSpec(
            name="difficulty",
            target="ajet_cli.commands.sources.difficulty:difficulty",
            summary="Show how difficult the tasks of a run were over its steps.",
        ),
        CommandSpec(
            name="sources",
            target="ajet_cli.commands.sources.listing:sources",
            summary="List installed task sources: licence, size, reward, how to train them.",
        ),
        CommandSpec(
            name="exec",
            target="ajet_cli.commands.exec:exec_",
            summary="Roll out episodes of any program, each in a sandbox.",
        ),
        CommandSpec(
            name="research",
            target="ajet_cli.commands.research:research",
            summary="Run studies: experiments that are registered in advance and verified.",
        ),
        CommandSpec(
            name="export",
            target="ajet_cli.commands.export:export",
            summary="Write a run's samples as JSON lines or Parquet.",
        ),
        CommandSpec(
            name="inspect",
            target="ajet_cli.commands.inspect:inspect",
            summary="Inspect a run's episodes, token by token.",
        ),
        CommandSpec(
            name="gpu-check",
            target="ajet_cli.commands.gpu_check:gpu_check",
            summary="Check that this machine's GPUs serve and train a model.",
        ),
        CommandSpec(
            name="mcp",
            target="ajet_cli.commands.assistants.mcp:mcp",
            summary="Offer the tools of a swarm server to coding assistants, over MCP.",
        ),
        CommandSpec(
            name="assist",
            target="ajet_cli.commands.assistants.assist:assist",
            summary="Set up coding assistants to train agents with agentjet.",
        ),
        CommandSpec(
            name="plugin",
            target="ajet_cli.commands.projects.plugin:plugin",
            summary="Create, update and check the project of a plugin.",
        ),
        CommandSpec(
            name="replay",
            target="ajet_cli.commands.replay:replay",
            summary="Train recorded steps again, as they were or with changed settings.",
        ),
        CommandSpec(
            name="sft",
            target="ajet_cli.commands.sft:sft",
            summary="Fine-tune a model on conversations, or on a run's best episodes.",
        ),
        CommandSpec(
            name="store",
            target="ajet_cli.commands.store:store",
            summary="Move a run to another sample store.",
        ),
    )
