"""The signals again, in plain Python over strings, straight from the rules: what the compiled pass is compared with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

TERMINALS = ".?!。．؟।"
STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}


def repeated(parts: Sequence[str]) -> tuple[int, int]:
    """Second and later occurrences, and their summed length."""
    counts = Counter(parts)
    return len(parts) - len(counts), sum((n - 1) * len(part) for part, n in counts.items())


def top_gram(words: Sequence[str], size: int) -> int:
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    if not grams:
        return 0
    gram, count = Counter(grams).most_common(1)[0]
    return (sum(map(len, gram)) + size - 1) * count


def repeated_grams(words: Sequence[str], size: int) -> int:
    seen: set[str] = set()
    chars = i = 0
    while i + size <= len(words):
        gram = "".join(words[i : i + size])
        if gram in seen:
            chars += len(gram)
            i += size
        else:
            seen.add(gram)
            i += 1
    return chars


def line_signals(text: str) -> dict[str, int]:
    lines = text.splitlines()
    paragraphs = re.split(r"\n{2,}", text.strip())
    runs = re.split(r"\n+", text)
    full = [line for line in text.split("\n") if line.strip()]
    return {
        "n_chars": len(text),
        "n_bytes": len(text.encode()),
        "n_newlines": text.count("\n"),
        "n_alpha_chars": sum(char.isalpha() for char in text),
        "n_space_chars": sum(char.isspace() for char in text),
        "n_digit_chars": sum(char in "0123456789" for char in text),
        "n_upper_chars": sum("A" <= char <= "Z" for char in text),
        "n_hashes": text.count("#"),
        "n_ellipses": text.count("...") + text.count("…"),
        "n_curly_brackets": text.count("{"),
        "n_lorem_ipsum": len(re.findall("lorem ipsum", text, re.ASCII | re.IGNORECASE)),
        "n_javascript": len(re.findall("javascript", text, re.ASCII | re.IGNORECASE)),
        "n_text_lines": len(lines),
        "n_bullet_lines": sum(line.lstrip().startswith(("•", "-")) for line in lines),
        "n_ellipsis_lines": sum(line.rstrip().endswith(("...", "…")) for line in lines),
        "n_paragraphs": len(paragraphs),
        "n_dup_paragraphs": repeated(paragraphs)[0],
        "dup_paragraph_chars": repeated(paragraphs)[1],
        "n_lines": len(runs),
        "n_dup_lines": repeated(runs)[0],
        "dup_line_chars": repeated(runs)[1],
        "n_full_lines": len(full),
        "n_short_lines": sum(len(line) <= 30 for line in full),
        "n_terminal_lines": sum(line[-1] in TERMINALS for line in full),
        "dup_full_line_chars": repeated(full)[1],
    }


def word_signals(words: Sequence[str], punctuation: frozenset[str]) -> dict[str, int]:
    content = [word for word in words if any(char not in punctuation for char in word)]
    return {
        "n_words": len(words),
        "n_content_words": len(content),
        "content_word_chars": sum(map(len, content)),
        "n_alpha_words": sum(any(char.isalpha() for char in word) for word in words),
        "n_stop_words": len(STOP_WORDS.intersection(words)),
        **{f"top_{n}_gram_chars": top_gram(words, n) for n in (2, 3, 4)},
        **{f"dup_{n}_gram_chars": repeated_grams(words, n) for n in range(5, 11)},
    }


def sentences(text: str) -> int:
    return len(re.findall(r"[.!?…][\"')\]}’”»」』）.!?…]*(?=\s|$|\Z)|[。！？｡]", text))
