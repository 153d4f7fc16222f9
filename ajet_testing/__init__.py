"""For plugin authors: conformance suites to subclass, and components without dependencies.

``pip install 'agentjet[testing]>=0.1'`` installs what the suites need. Import each from its module:

- `ajet_testing.suites.store_suite.SampleStoreSuite` for a `SampleStore`,
- `ajet_testing.suites.merger_suite.MergerSuite` for a `Merger`,
- `ajet_testing.suites.engine_suite.EngineSuite` for an `Engine`,
- `ajet_testing.suites.trainer_suite.TrainerSuite` for a `Trainer`, and
  `ajet_testing.suites.loss_suite.LossSuite` for one whose loss `AlgorithmConfig` describes,
- `ajet_testing.suites.agent_suite.AgentSuite` for an `AgentAdapter`, with
  `ajet_testing.scripted_swarm.ScriptedSwarm`, a real server whose model gives scripted answers.

Each test has a time limit, and pytest's summary lists the tests of a suite that did not run
(`ajet_testing.conformance`, a plugin of pytest that needs no configuration).
``pytest.register_assert_rewrite("ajet_testing")`` in a ``conftest.py`` makes failures show values.

The engine ``scripted`` (`ajet_testing.scripted_engine`) and the trainer ``scripted``
(`ajet_testing.scripted_trainer`) give scripted results and failures. They are not installed as a
plugin: `ajet_testing.plugins.scripted_plugins` creates a plugin manager with them.

The package also has parts shared by the tests of this repository's plugins: servers to send
requests to (`ajet_testing.servers`), workers that are tasks (`worker_tasks`), and a real trainer
under a server (`real_trainer`); the environments of backends (`backends`) and tiny models for their
servers (`served_models`, `served_ports`); a program that is trained until it learns
(`door_training`), and the tutorial of a README (`tutorial`).

Nothing is imported here, because the scripted components are imported by worker processes, which
have no pytest. PYTEST_DONT_REWRITE: this module has no assertions.
"""
