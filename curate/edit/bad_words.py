"""C4's bad words (Raffel et al. 2020, section 2.2): a document whose kept lines hold a listed word is dropped; none is shipped.

Entries match as runs of words, as ``curate.dedup.shingles`` cuts them: without regard to case, and to marks between words; in scripts
without spaces each character is a word, so that an entry matches anywhere. An entry without any letter or digit matches as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.contamination import CONTAMINATION_VERSION, ItemIndex
from curate.edit.record import Edited, Failed
from curate.loose import loose_files
from schemas.errors import InputError

BAD_WORDS_VERSION = CONTAMINATION_VERSION
"""Raised whenever the outcome for any text changes."""
REASON = "c4_bad_words"
MOST_CHARS = 100
"""Of an entry, which therefore has no more words either."""


def read_words(patterns: Sequence[str], where: str) -> list[str]:
    """The entries of files, each once, sorted: the same lists give the same entries whatever their place and order.

    Raises:
        InputError: a file is missing or no text, or an entry is too long.
    """
    found: set[str] = set()
    for _, place in loose_files(patterns, where) if patterns else ():
        try:
            lines = Path(place).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read: {error}", where=place, fix="give a UTF-8 file with one word or phrase a line") from error
        entries = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
        if long := next((entry for entry in sorted(entries) if len(entry) > MOST_CHARS), None):
            raise InputError(f"{long[:40]!r}... is longer than {MOST_CHARS} characters", where=place, fix="correct or remove the line")
        found |= entries
    return sorted(found)


@lru_cache(maxsize=8)
def _index(words: tuple[str, ...]) -> tuple[ItemIndex, list[str]]:
    marks = [word for word in words if not any(char.isalnum() for char in word)]
    return ItemIndex([word for word in words if word not in marks], MOST_CHARS), marks


def without_bad_words(before: pa.LargeStringArray, done: Edited, words: Sequence[str]) -> Edited:
    """What C4 did, with the documents dropped whose new text holds one of the words; their text is the old one again."""
    if not words:
        return done
    index, marks = _index(tuple(words))
    _, matches = index.overlaps(done.texts)
    for mark in marks:
        matches = matches + pc.count_substring(done.texts, mark).to_numpy(zero_copy_only=False)
    matches[done.failures.row] = 0
    rows = np.flatnonzero(matches)
    if len(rows) == 0:
        return done
    kept = np.ones((len(matches), 1), np.int64)
    kept[rows] = 0
    old = done.failures
    order = np.argsort(np.concatenate([old.row, rows]), kind="stable")
    rules = [*old.rule, *[REASON] * len(rows)]
    failures = Failed(
        np.concatenate([old.row, rows])[order],
        [rules[place] for place in order.tolist()],
        np.concatenate([old.value, matches[rows].astype(np.float64)])[order],
        np.concatenate([old.threshold, np.zeros(len(rows))])[order],
    )
    texts = pc.if_else(pa.array(kept[:, 0] == 1), done.texts, before)
    return replace(done, texts=texts, counts=done.counts * kept, removed=done.removed * kept, added=done.added * kept, failures=failures)
