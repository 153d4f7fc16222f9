import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split, Whitespace

from ajet_server.fastpath import words as words_module
from ajet_server.fastpath.words import KnownWords
from ajet_testing.tokenizers import CORPUS
from tests.support.tiers import examples

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
PIECES = [
    "don't",
    "I'LL",
    " the",
    "word",
    "12345",
    " \n",
    "\r\n",
    "  ",
    "!?",
    "<think>",
    "<think",
    "<",
    "[x]",
    "é",
    "ſ",
]
TEXTS = st.text(st.characters(max_codepoint=127)) | st.lists(st.sampled_from(PIECES)).map("".join)


def cut_by(regex, behavior="isolated"):
    split = Split(Regex(regex), behavior)
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])


WAYS = {
    "gpt2": (ByteLevel(add_prefix_space=False), None),
    "qwen2": (cut_by(QWEN2), normalizers.NFC()),
    "llama3": (cut_by(LLAMA3), None),
}


def trained(pre_tokenizer, normalizer=None, dropout=None, added=("<think", "<think>", "[x]")):
    tokenizer = Tokenizer(models.BPE(dropout=dropout))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=ByteLevel.alphabet(),
        special_tokens=[AddedToken(text, normalized=False) for text in added],
        show_progress=False,
    )
    tokenizer.train_from_iterator([*CORPUS, "don't I'LL 12345  \n\n word the"], trainer)
    return tokenizer


def with_added(token):
    tokenizer = trained(ByteLevel(add_prefix_space=False))
    tokenizer.add_tokens([token])
    return tokenizer


@pytest.fixture(scope="module", params=WAYS)
def backend(request):
    return trained(*WAYS[request.param])


@given(texts=st.lists(TEXTS, max_size=4))
@settings(max_examples=examples(200), deadline=None)
def test_ids_are_the_tokenizers_own(backend, texts):
    words = KnownWords.of(backend)
    for text in texts * 2:
        ids = words.encode(text)
        assert ids is None or ids == backend.encode(text, add_special_tokens=False).ids


def test_plain_text_is_encoded_by_its_words(backend):
    assert KnownWords.of(backend).encode("Don't go: <think> up,  it") is not None


@pytest.mark.parametrize("text", ["é", "word " * 1000, "w" * 100, "<think>" + "w" * 100])
def test_other_text_is_left_to_the_tokenizer(backend, text):
    assert KnownWords.of(backend).encode(text) is None


def test_a_text_of_many_new_words_is_known_after_a_while(backend):
    words = KnownWords.of(backend)
    text = " ".join(f"{a}{b}" for a in "abcde" for b in "vwxyz")
    tries = [words.encode(text) for _ in range(5)]
    assert tries[0] is None
    assert tries[-1] == backend.encode(text, add_special_tokens=False).ids


def test_what_is_known_has_a_bound(backend, monkeypatch):
    monkeypatch.setattr(words_module, "_MAX_KNOWN", 20)
    words = KnownWords.of(backend)
    for a in "abcdefghij":
        text = " ".join(a + b for b in "uvwxyz")
        assert words.encode(text) == backend.encode(text, add_special_tokens=False).ids
        assert 0 < len(words._known) <= 20


@pytest.mark.parametrize(
    "other",
    [
        trained(ByteLevel(add_prefix_space=True)),
        trained(cut_by(r"\p{L}+|\P{L}+")),
        trained(cut_by(QWEN2, "removed")),
        trained(Whitespace()),
        trained(ByteLevel(add_prefix_space=False), normalizers.Lowercase()),
        trained(ByteLevel(add_prefix_space=False), dropout=0.5),
        with_added(AddedToken("<wide>", lstrip=True, normalized=False)),
        with_added(AddedToken("<normal>", normalized=True)),
    ],
    ids=[
        "prefix",
        "regex",
        "removed",
        "whitespace",
        "normalizer",
        "dropout",
        "strips",
        "normalized",
    ],
)
def test_tokenizers_that_are_not_known_are_left_alone(other):
    assert KnownWords.of(other) is None
