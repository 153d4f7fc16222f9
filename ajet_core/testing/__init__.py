"""For authors of plugins: conformance suites to subclass, and components without dependencies.

The suites need pytest and pytest-asyncio; import each from its module:

- `ajet_core.testing.store_suite.SampleStoreSuite` for a `SampleStore`,
- `ajet_core.testing.merger_suite.MergerSuite` for a `Merger`,
- `ajet_core.testing.engine_suite.EngineSuite` for an `Engine`,
- `ajet_core.testing.trainer_suite.TrainerSuite` for a `Trainer`, and `ajet_core.testing.loss_suite.LossSuite` for one whose loss `AlgorithmConfig` describes,
- `ajet_core.testing.agent_suite.AgentSuite` for an `AgentAdapter`, with `ajet_core.testing.scripted_swarm.ScriptedSwarm`, a real
  server whose model says what it is told to.

``pytest.register_assert_rewrite("ajet_core.testing")`` in a ``conftest.py`` makes their failures show values.

The engine ``scripted`` (`ajet_core.testing.scripted_engine`) and the trainer ``scripted``
(`ajet_core.testing.scripted_trainer`) answer what they are told to and fail when they are told to.
They are not installed as a plugin: `ajet_core.testing.plugins.scripted_plugins` makes a plugin manager with them.

Nothing is imported here, because the scripted components are imported by worker processes, which have
no pytest.
"""
