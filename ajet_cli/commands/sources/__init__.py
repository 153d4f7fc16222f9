"""The commands that take a task source: ``ajet train``, ``ajet eval`` and ``ajet check``."""
