"""Settings, in a light module: they are checked before the framework is imported."""

from __future__ import annotations

from ajet_core.interfaces import ComponentSettings


class StrandsAdapterSettings(ComponentSettings):
    """Settings of the adapter ``strands``.

    :param keep_messages: whether the copies of an agent begin with the messages that it has when
        training begins, such as examples; otherwise they begin with none.
    :param print_answers: whether copies of agents print their answers, as Strands does by default.
    """

    keep_messages: bool = False
    print_answers: bool = False
