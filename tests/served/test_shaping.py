"""What servers are told of penalties, biases and grammars, and what they make of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.errors import RequestError, UnsupportedError
from ajet_core.interfaces import GenerateRequest, SamplingParams
from ajet_engines.in_server.ajet_shaping import Followed, Grammars, Placed
from ajet_engines.shaping import Shapings, sampling_overrides
from ajet_testing.ascii_tokenizer import ascii_text, write_ascii_tokenizer

SIZE = 96
STOP = 3
GRAMMAR = 'start: "ab" /[cd]{2,4}/ "e"'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("llguidance")
    directory = tmp_path_factory.mktemp("model")
    write_ascii_tokenizer(directory, SIZE)
    return directory


def asked(*sampled: int, **options: object) -> GenerateRequest:
    """A request of which these tokens were sampled elsewhere."""
    sampling = SamplingParams(64, stop_token_ids=(STOP,), **options)  # type: ignore[arg-type]
    return GenerateRequest("r", [7, 7], sampling).continued(list(sampled))


def ids_of(text: str) -> list[int]:
    return [ord(letter) - 32 for letter in text]


def allowed(row: np.ndarray) -> str:
    return ascii_text(np.flatnonzero(np.isfinite(row)).tolist())


@given(
    sampled=st.lists(st.integers(0, SIZE - 1), max_size=20),
    cut=st.integers(0, 20),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
    bias=st.lists(st.tuples(st.integers(0, SIZE - 1), st.floats(-100, 100)), max_size=3),
)
def test_a_request_that_goes_on_elsewhere_is_shaped_as_if_it_had_stayed(
    sampled: list[int], cut: int, frequency: float, presence: float, bias: list[tuple[int, float]]
) -> None:
    options = {
        "frequency_penalty": frequency,
        "presence_penalty": presence,
        "logit_bias": tuple(bias),
    }
    shapings = Shapings("/nowhere", SIZE)
    stayed = shapings.begin(asked(**options))
    earlier, later = sampled[:cut], sampled[cut:]
    rest = asked(*earlier, **options)
    said = sampling_overrides(rest)
    assert bool(said) == rest.sampling.is_penalised
    gone_on = shapings.begin(rest)
    if stayed is None:
        assert gone_on is None
        return
    assert gone_on is not None
    for token in sampled:
        stayed.take(token)
    for token in later:
        gone_on.take(token)
    followed = Followed(said, Grammars("/nowhere", SIZE), rest.prompt_ids)
    np.testing.assert_array_equal(followed.row(later), stayed.row())
    np.testing.assert_array_equal(gone_on.row(), stayed.row())


def test_a_grammar_goes_on_where_it_was(model: Path) -> None:
    rest = asked(*ids_of("abc"), grammar=GRAMMAR)
    followed = Followed(sampling_overrides(rest), Grammars(str(model), SIZE), rest.prompt_ids)
    here = Shapings(str(model), SIZE).begin(rest)
    assert here is not None
    assert allowed(here.row()) == "cd"
    assert allowed(followed.row([])) == "cd"
    assert allowed(followed.row(ids_of("d"))) == "cde"
    assert allowed(followed.row(ids_of("de"))) == ascii_text([STOP])


def test_after_what_does_not_match_it_can_only_end(model: Path) -> None:
    followed = Followed(sampling_overrides(asked(grammar=GRAMMAR)), Grammars(str(model), SIZE), [1])
    assert allowed(followed.row(ids_of("x"))) == ascii_text([STOP])


def test_places_may_be_looked_at_before_others_are_known(model: Path) -> None:
    said = sampling_overrides(asked(grammar=GRAMMAR, logit_bias=((4, 2.0),)))
    placed = Placed(said, Grammars(str(model), SIZE), [9, 9, 9])
    # Parts of the prompt; what is sampled there is thrown away.
    assert placed.row(0) is None
    assert placed.row(1) is None

    def allowed_after(position: int) -> str:
        row = placed.row(position)
        assert row is not None
        return allowed(row)

    for position, (letter, expected) in enumerate([("a", "a"), ("b", "b"), ("c", "cd")], start=2):
        assert allowed_after(position) == expected
        placed.sampled(position, ids_of(letter)[0])
    assert allowed_after(5) == "cd"
    # It was one too many: the server takes it back, and samples the last one again.
    assert allowed_after(4) == "cd"
    placed.sampled(4, ids_of("d")[0])
    placed.sampled(5, ids_of("d")[0])
    assert allowed_after(6) == "cde"


def test_white_space_is_bounded_by_versions_that_do_not_bound_it_themselves(model: Path) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2}
    options = {"x-guidance": {"whitespace_pattern": "[ \t]{0,3}"}}
    grammar = f"start: %json {json.dumps({**schema, **options})}"

    def accepted(text: str) -> bool:
        grammars = Grammars(str(model), SIZE)
        grammars._bounds = False
        ids = ids_of(text)
        return bool(grammars.matcher(grammar, [STOP]).validate_tokens(ids) == len(ids))

    assert accepted("[1,2]")
    assert accepted("[1   ,   2]")
    assert not accepted("[1,    2]")
    assert not accepted("[ 1,2]")


def test_a_server_does_not_die_of_what_it_cannot_follow(model: Path, tmp_path: Path) -> None:
    said = sampling_overrides(asked(grammar="start: %json {"))
    assert allowed(Followed(said, Grammars(str(model), SIZE), [1]).row([])) == ascii_text([STOP])
    said = sampling_overrides(asked(grammar=GRAMMAR))
    # There is no tokenizer.
    elsewhere = Followed(said, Grammars(str(tmp_path), SIZE), [1])
    assert allowed(elsewhere.row(ids_of("ab"))) == ascii_text([STOP])
    followed = Followed(said, Grammars(str(model), SIZE), [1])
    assert allowed(followed.row([-1])) == ascii_text([STOP])


def test_what_is_not_shaped_takes_nothing() -> None:
    assert sampling_overrides(asked(1, 2, 3, top_p=0.5)) == ""
    assert Shapings("/nowhere", SIZE).begin(asked(top_k=3)) is None


def test_what_cannot_be_enforced_is_refused(model: Path, tmp_path: Path) -> None:
    shapings = Shapings(str(model), SIZE)
    with pytest.raises(RequestError, match="cannot be enforced"):
        shapings.begin(asked(grammar="start: %json {"))
    with pytest.raises(UnsupportedError, match="needs a stop token"):
        shapings.begin(GenerateRequest("r", [1], SamplingParams(1, grammar=GRAMMAR)))
    with pytest.raises(UnsupportedError, match=r"tokenizer\.json is missing"):
        Shapings(str(tmp_path), SIZE).begin(asked(grammar=GRAMMAR))
