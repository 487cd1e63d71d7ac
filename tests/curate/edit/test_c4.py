"""C4's rewriting against its rules written in plain Python."""

import re
import unicodedata

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.edit.c4 import c4
from curate.signals.tokenizer import words_of
from schemas.edits import C4_RULES

POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
PIECES = [
    "One two three four.", "Is it so? Yes! No.", "short.", " ends in dots...", '"He said so now."', "no mark at the end", "[12]", "[edit]",
    "[citation needed]", "[]", "[٣]", "[1", "Lorem IPSUM is here now.", "we like JavaScript very much.", "some { bracket in text.",
    "see our Privacy Policy for this.", "we use cooKies here often.", "x" * 1001, "x" * 1000, "e.g. this. And 3.5 that.",
    "。全角。です。", "!",
    "Hello.  Two spaces here.", "a\tb\tc.", "\u00a0", " ", "...", "'tis so, isn't it?'", "Mr. Smith came. (He left.) Ok.", "é è ü.",
    "😀 so it is.",
]  # fmt: skip
BREAKS = ["\n", "\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", " ", ""]
texts = st.lists(
    st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(BREAKS)), max_size=9).map(lambda pairs: "".join(a + b for a, b in pairs))
    | st.text(st.characters(codec="utf-8"), max_size=20),
    max_size=4,
)
changes = st.fixed_dictionaries(
    {
        "off": st.lists(st.sampled_from([rule for rule in C4_RULES if rule not in ("too_few_words", "too_few_sentences")]), max_size=3),
        "thresholds": st.fixed_dictionaries({"too_few_words": st.integers(1, 5), "too_few_sentences": st.integers(1, 6)}),
    }
)


def sentences(line: str) -> int:
    """Sentences by a rule over tokens; white space is a token unless it is one space after a word."""
    tokens = []
    for run in re.findall(r"\s+|\S+", line):
        if run.isspace():
            tokens += [] if run == " " and tokens else [run]
        else:
            tokens += words_of(run)
    count, visible, ended = 0, False, False
    for token in tokens:
        ends = token in set("!.?。！？．｡")
        if ended and not ends and not all(unicodedata.category(char)[0] == "P" for char in token):
            count, visible, ended = count + visible, False, False
        ended |= ends
        visible |= not token.isspace()
    return count + visible


def expected(text: str, off: list[str], thresholds: dict[str, int]) -> tuple[str, str | None]:
    on, kept, found = set(C4_RULES) - set(off), [], 0
    for raw in text.splitlines():
        line = raw.strip()
        words = line.split()
        if "too_long_word" in on and any(len(word) > 1000 for word in words):
            continue
        if "citation" in on:
            line = re.sub(r"\[\d*]|\[edit]|\[citation needed]", "", line)
        if "no_terminal_punct" in on and (not line.endswith((".", "?", "!", '"', "'")) or line.endswith("...")):
            continue
        if len(words) < thresholds["too_few_words"]:
            continue
        if "lorem_ipsum" in on and "lorem ipsum" in line.lower():
            return text, "c4_lorem_ipsum"
        if "javascript" in on and "javascript" in line.lower():
            continue
        if "curly_bracket" in on and "{" in line:
            return text, "c4_curly_bracket"
        if "policy" in on and any(phrase in line.lower() for phrase in POLICY):
            continue
        found += sentences(line)
        kept.append(line)
    return ("\n".join(kept).strip(), None) if found >= thresholds["too_few_sentences"] else (text, "c4_too_few_sentences")


@settings(max_examples=300, deadline=None)
@given(texts, changes)
def test_lines_and_documents_are_kept_as_the_rules_say(values, change):
    done = c4(pa.array(values, pa.large_string()), change["off"], change["thresholds"])
    reasons = dict(zip(done.failures.row.tolist(), done.failures.rule, strict=True))
    assert [(text, reasons.get(row)) for row, text in enumerate(done.texts.to_pylist())] == [expected(v, **change) for v in values]
    assert done.removed.sum(axis=1).tolist() == [
        len(v.encode()) - len(t.encode()) for v, t in zip(values, done.texts.to_pylist(), strict=True)
    ]


def test_a_document_without_enough_sentences_tells_how_many_there_were():
    done = c4(pa.array(["One two three. Four five six.", "\n\n\n", "a\x00b c d."], pa.large_string()))
    assert list(done.failures.rule) == ["c4_too_few_sentences"] * 3
    assert done.failures.value.tolist() == [2, 0, 1]
    assert done.failures.threshold.tolist() == [5, 5, 5]


def test_one_line_of_megabytes_and_slices_of_an_array():
    text = "The cat sat on the mat. " * 200_000
    done = c4(pa.array(["before", text], pa.large_string())[1:])
    assert done.texts.to_pylist() == [text.strip()]
    assert len(done.failures.row) == 0
