"""What the English tokenizer splits off a chunk's start and end, and what cuts its middle."""

from __future__ import annotations

from curate.signals.code_points import (
    BEFORE_DOT,
    CURRENCY,
    DIGIT,
    ICON,
    INFIX,
    LETTER,
    LOWER,
    PREFIX,
    QUOTE,
    SUFFIX,
    UNIT_END,
    UPPER,
    class_of,
    point_of,
)
from curate.signals.english import slot_of
from curate.signals.hashing import part
from curate.signals.kernels import at, small

MAX_UNIT = 5


@small
def prefix_length(rules, s, a, b):  # type: ignore[no-untyped-def]
    """Characters to split off the start of s[a:b]; 0 for none."""
    first = s[a]
    if class_of(rules.classes, first) & PREFIX:
        return 1
    if first == 46:
        end = a + 1
        while end < b and s[end] == 46:
            end += 1
        return end - a if end - a > 1 else 0
    if first == 43:
        return 0 if a + 1 < b and class_of(rules.classes, s[a + 1]) & DIGIT else 1
    if a + 2 < b and first == 85 and s[a + 1] == 83 and s[a + 2] == 36:  # US$
        return 3
    if a + 1 < b and (first == 67 or first == 65) and s[a + 1] == 36:  # C$ and A$
        return 2
    if a + 3 == b and first == 85 and s[a + 1] == 83 and s[a + 2] == 36:
        return 3
    return 0


@small
def unit_length(rules, s, prefix, a, b):  # type: ignore[no-untyped-def]
    """Length of the unit at the end of s[a:b] that follows an ASCII digit; 0 for none."""
    start = b - 1
    while start > a and b - start <= MAX_UNIT:
        if class_of(rules.classes, s[start - 1]) & DIGIT:
            return b - start if slot_of(rules.units, part(prefix, rules.powers, start, b)) >= 0 else 0
        start -= 1
    return 0


@small
def dot_is_suffix(rules, s, a, b):  # type: ignore[no-untyped-def]
    """Whether the single full stop at the end of s[a:b] is split off."""
    if b - a < 2:
        return False
    before = class_of(rules.classes, s[b - 2])
    if before & BEFORE_DOT:
        return True
    if b - a < 3:
        return False
    if before & UPPER and class_of(rules.classes, s[b - 3]) & UPPER:
        return True
    return point_of(rules.points, s, b - 3) == 0xB0 and (s[b - 2] == 70 or s[b - 2] == 67 or s[b - 2] == 75)


@small
def suffix_length(rules, s, prefix, a, b):  # type: ignore[no-untyped-def]
    """Characters to split off the end of s[a:b]: the longest rule that matches, 0 for none."""
    if b <= a:
        return 0
    last = point_of(rules.points, s, b - 1)
    mask = class_of(rules.classes, s[b - 1])
    if last == 46:
        start = b - 1
        while start > a and s[start - 1] == 46:
            start -= 1
        if b - start > 1:
            return b - start
        return 1 if dot_is_suffix(rules, s, a, b) else 0
    if last == 0x2026:
        return 2 if b - a > 1 and s[b - 2] == s[b - 1] else 1
    if mask & SUFFIX:
        return 1
    if b - a < 2:
        return 0
    before = point_of(rules.points, s, b - 2)
    if (last == 115 or last == 83) and (before == 39 or before == 0x2019):  # 's
        return 2
    digit_before = class_of(rules.classes, s[b - 2]) & DIGIT
    if digit_before and (last == 43 or mask & CURRENCY):
        return 1
    if last == 36 and b - a > 2:
        if (before == 67 or before == 65) and class_of(rules.classes, s[b - 3]) & DIGIT:
            return 2
        if b - a > 3 and before == 83 and s[b - 3] == 85 and class_of(rules.classes, s[b - 4]) & DIGIT:
            return 3
    if mask & UNIT_END:
        return unit_length(rules, s, prefix, a, b)
    return 0


@small
def hyphen_length(rules, s, k, b):  # type: ignore[no-untyped-def]
    """Length of the hyphen or dash at s[k] that a letter follows; 0 for none. A letter or digit before it is given."""
    sign = point_of(rules.points, s, k)
    longest = 1
    if sign == 45:
        longest = 3
    elif sign == 0x2014:
        longest = 2
    elif sign != 0x2013 and sign != 126:
        return 0
    for length in range(1, longest + 1):
        end = k + length
        if end >= b:
            return 0
        if class_of(rules.classes, s[end]) & LETTER:
            return length
        if s[end] != s[k]:
            return 0
    return 0


@small
def infix_length(rules, s, a, k, b):  # type: ignore[no-untyped-def]
    """Length of the infix that starts at s[k] inside s[a:b]; 0 for none."""
    mask = class_of(rules.classes, at(s, k))
    if not mask & INFIX:
        return 0
    sign = point_of(rules.points, s, k)
    if sign == 46 and k + 1 < b and s[k + 1] == 46:
        end = k + 2
        while end < b and s[end] == 46:
            end += 1
        return end - k
    if sign == 0x2026 or mask & ICON:
        return 1
    if k == a or k + 1 >= b:
        return 0
    before, after = class_of(rules.classes, s[k - 1]), class_of(rules.classes, s[k + 1])
    if (sign == 43 or sign == 45 or sign == 42 or sign == 94) and before & DIGIT and (after & DIGIT or s[k + 1] == 45):
        return 1
    if sign == 46:
        return 1 if before & (LOWER | QUOTE) and after & (UPPER | QUOTE) else 0
    if sign == 44:
        return 1 if before & LETTER and after & LETTER else 0
    if not before & (LETTER | DIGIT):
        return 0
    if (58 <= sign <= 62 and sign != 59) or sign == 47:
        return 1 if after & LETTER else 0
    return hyphen_length(rules, s, k, b)
