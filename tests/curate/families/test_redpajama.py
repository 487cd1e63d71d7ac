"""RedPajama-v2's signals equal a plain Python count by regular expressions and dictionaries, whatever the text and batch."""

from __future__ import annotations

import itertools
import math
import random
import re
import string
import unicodedata
from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.families.normal_forms import forms, normalise, normalised
from curate.families.redpajama import redpajama_signals
from curate.rules import evaluate, resolve_rules
from schemas.families import FAMILIES

PIECES = [
    "the ",
    "cat ",
    "sat ",
    "a",
    "B",
    "Lorem ipsum ",
    "lo-rem\nipsum",
    "Javascript ",
    "java-script",
    "...",
    ".",
    "!",
    "?",
    "…",
    "#",
    "{",
    "}",
]
PIECES += [
    "\n",
    "\n\n",
    "  ",
    "\t",
    "\r\n",
    "\u2028",
    "•",
    "–x",
    "■",
    "”",
    "é",
    "É",
    "ǅ",
    "İ",
    "ΑΣ",
    "ΑΣ-Β",
    "½",
    "７",
    "漢",
    "가",
    "_",
    "12",
    "≠",
    "\x1c",
]
TEXTS = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=80).map("".join))
BULLETS = tuple("\u2022\u2023\u25b6\u25c0\u25e6\u25a0\u25a1\u25aa\u25ab\u2013")


def normal(text: str) -> str:
    kept = text.translate(str.maketrans("", "", string.punctuation)).lower()
    return unicodedata.normalize("NFD", re.sub(r"\s+", " ", kept.strip()))


def expected(text: str) -> dict[str, int]:
    plain = normal(text)
    words, raw = plain.split(), re.findall(r"\w+|[^\w\s]+", text)
    lines = [match.group() for match in re.finditer(r"([^\n]*\n|[^\n]+$)", text)]
    shares = [count / len(words) for count in Counter(words).values()]
    counted = {
        "rps_words": len(words),
        "rps_word_chars": sum(map(len, words)),
        "rps_unique_words": len(set(words)),
        "rps_entropy_micro": round(sum(-share * math.log(share) for share in shares) * 1e6),
        "rps_raw_words": len(raw),
        "rps_alpha_words": sum(bool(re.search("[a-zA-Z]", word)) for word in raw),
        "rps_caps_words": sum(map(str.isupper, raw)),
        "rps_symbols": text.count("#") + text.count("...") + text.count("…"),
        "rps_sentences": len(re.findall(r"\b[^.!?]+[.!?]*", text)),
        "rps_curly_brackets": text.count("{") + text.count("}"),
        "rps_lorem_ipsum": plain.count("lorem ipsum"),
        "rps_javascript": sum(normal(line).split().count("javascript") for line in lines),
        "rps_lines": len(lines),
        "rps_terminal_lines": sum(line.rstrip().endswith((".", "!", "?", "”")) for line in lines),
        "rps_ellipsis_lines": sum(line.rstrip().endswith(("...", "…")) for line in lines),
        "rps_bullet_lines": sum(line.lstrip().startswith(BULLETS) for line in lines),
        "rps_upper_chars": sum(sum(map(str.isupper, line)) for line in lines),
        "rps_numeric_chars": sum(sum(map(str.isnumeric, normal(line))) for line in lines),
    }
    for n in range(2, 11):
        grams = [tuple(words[k : k + n]) for k in range(len(words) - n + 1)]
        met = Counter(grams)
        if n <= 4:
            best, count = met.most_common(1)[0] if met else ((), 0)
            counted[f"rps_top_{n}_gram_chars"] = sum(map(len, best)) * count if count > 1 else 0
        else:
            inside = {w for k, gram in enumerate(grams) if met[gram] > 1 for w in range(k, k + n)}
            counted[f"rps_dup_{n}_gram_chars"] = sum(len(words[w]) for w in inside)
    return counted


def rows(texts: list[str]) -> list[dict[str, int]]:
    return redpajama_signals(pa.array(texts, pa.large_string())).to_pylist()


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_every_count_equals_the_plain_one(text: str) -> None:
    told, counted = rows([text])[0], expected(text)
    assert abs(told.pop("rps_entropy_micro") - counted.pop("rps_entropy_micro")) <= 1  # a sum in another order
    assert told == counted


@given(st.lists(st.sampled_from("ab"), min_size=20, max_size=120).map(" ".join))
@settings(max_examples=100, deadline=None)
def test_repeats_of_few_words_equal_the_plain_count(text: str) -> None:
    told, counted = rows([text])[0], expected(text)
    assert {name: told[name] for name in told if "gram" in name} == {name: counted[name] for name in told if "gram" in name}


@given(st.lists(TEXTS, max_size=5), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_a_row_depends_on_its_text_alone(texts: list[str], cut: int) -> None:
    assert rows(texts) == rows(texts[:cut]) + rows(texts[cut:])


def test_the_rule_set_names_what_is_wrong() -> None:
    words = random.Random(0).choices(["river", "stone", "garden", "window", "letter", "market", "summer", "winter", "forest"], k=120)
    good = "\n".join(" ".join(words[k : k + 10]) + "." for k in range(0, 120, 10))
    texts = [good, "too short", "spam and ham " * 60, good + " # # # ... " * 20, ""]
    table = pa.Table.from_batches([redpajama_signals(pa.array(texts, pa.large_string()))])
    table = table.append_column("n_chars", pa.array(list(map(len, texts))))
    failed = evaluate(table, resolve_rules([{"set": "redpajama"}])).column("failures").to_pylist()
    names = [[failure["rule"] for failure in failures] for failures in failed]
    assert names[0] == [] and names[1] == ["rps_short_doc"] and names[4][0] == "empty"
    assert {"rps_top_3_gram", "rps_dup_5_grams"} <= set(names[2]) and "rps_symbols" in names[3]


def test_columns_are_those_of_the_schema() -> None:
    assert redpajama_signals(pa.array([], pa.large_string())).schema == FAMILIES["redpajama"]


def test_code_points_alone_become_what_python_makes_of_them() -> None:
    table = forms()
    one, written = np.empty(1, np.uint32), np.empty(16, np.uint32)
    for code in itertools.chain(range(0xD800), range(0xE000, 0x110000)):
        one[0] = code
        size = normalise(table, one, written)
        assert code == 0x3A3 if size < 0 else "".join(map(chr, written[:size])) == normalised(chr(code))


@given(st.text(st.sampled_from("a!é\u0301\u0323\u0307\u0327\u1e69가\u1100\u1161Σσİ")))
def test_normalised_texts_are_pythons_or_left_to_it(text: str) -> None:
    codes, written = np.array([ord(char) for char in text], np.uint32), np.empty(4 * len(text), np.uint32)
    size = normalise(forms(), codes, written)
    assert "Σ" in text or not unicodedata.is_normalized("NFD", text) if size < 0 else "".join(map(chr, written[:size])) == normalised(text)
