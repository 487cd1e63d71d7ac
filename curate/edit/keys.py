"""Where keys and secrets stand in a text: forms that services give their keys, private key blocks, and values named as secrets."""

from __future__ import annotations

import numpy as np

from curate.edit.c4 import starts_with
from curate.edit.personal import is_digit, is_letter, is_listed, is_word, words
from curate.signals.kernels import kernel

# Prefix, least and most characters after it.
_FORMS: tuple[tuple[str, int, int], ...] = (
    ("AKIA", 16, 16), ("ASIA", 16, 16), ("AIza", 35, 35), ("ghp_", 36, 36), ("gho_", 36, 36), ("ghu_", 36, 36), ("ghs_", 36, 36),
    ("ghr_", 36, 36), ("github_pat_", 60, 90), ("glpat-", 20, 24), ("xoxb-", 20, 120), ("xoxp-", 20, 120), ("xoxa-", 20, 120),
    ("xoxs-", 20, 120), ("sk_live_", 24, 99), ("rk_live_", 24, 99), ("sk_test_", 24, 99), ("sk-", 32, 200), ("npm_", 36, 36),
    ("hf_", 30, 40), ("pypi-AgEI", 80, 250), ("dop_v1_", 64, 64), ("SG.", 60, 70),
)  # fmt: skip
_PREFIXES = np.frombuffer("".join(prefix for prefix, _, _ in _FORMS).encode(), np.uint8)
_PREFIX_ENDS = np.cumsum([len(prefix) for prefix, _, _ in _FORMS])
_LEAST = np.array([least for _, least, _ in _FORMS])
_MOST = np.array([most for _, _, most in _FORMS])
_BEGIN = np.frombuffer(b"-----BEGIN ", np.uint8)
_PRIVATE = np.frombuffer(b"PRIVATE KEY", np.uint8)
_END = np.frombuffer(b"-----END ", np.uint8)
_NAMES = words("key", "apikey", "secret", "token", "password", "passwd", "pwd", "passphrase", "credential")
_LONGEST_BLOCK = 10_000


@kernel
def run_end(data, at, end):  # type: ignore[no-untyped-def]
    """The end of the letters, digits, - _ . from `at`, marks at the end left out."""
    k = at
    while k < end and (is_digit(data[k]) or is_letter(data[k]) or data[k] == 45 or data[k] == 95 or data[k] == 46):
        k += 1
    while k > at and data[k - 1] == 46:
        k -= 1
    return k


@kernel
def is_mixed(data, a, b, least):  # type: ignore[no-untyped-def]
    """Whether data[a:b] has some digits, as many letters, and at least ten different characters, as made-up names and words have not."""
    digits, letters, low, high = 0, 0, np.uint64(0), np.uint64(0)
    for k in range(a, b):
        byte = data[k]
        digits += int(is_digit(byte))
        letters += int(is_letter(byte))
        if byte < 64:
            low |= np.uint64(1) << np.uint64(byte)
        else:
            high |= np.uint64(1) << np.uint64(byte & 63)
    different = 0
    for bits in (low, high):
        while bits:
            bits &= bits - np.uint64(1)
            different += 1
    return digits >= least and letters >= least and different >= 10


@kernel
def key_at(data, at, begin, end):  # type: ignore[no-untyped-def]
    """The end of the key of a known form at `at`, a letter that begins a word; 0 where there is none."""
    if at > begin and is_word(data[at - 1]):
        return 0
    first = 0
    for form in range(len(_PREFIX_ENDS)):
        last = _PREFIX_ENDS[form]
        if data[at] == _PREFIXES[first] and starts_with(data, at, end, _PREFIXES[first:last]):
            body = at + last - first
            stop = run_end(data, body, end)
            if _LEAST[form] <= stop - body <= _MOST[form] and is_mixed(data, body, stop, 1):
                return stop
        first = last
    if end - at > 40 and data[at] == 101 and data[at + 1] == 121 and data[at + 2] == 74:  # a JSON web token: three parts
        stop, dots = run_end(data, at, end), 0
        for k in range(at, stop):
            dots += int(data[k] == 46)
        if dots == 2 and stop - at > 40:
            return stop
    return 0


@kernel
def block_at(data, at, end):  # type: ignore[no-untyped-def]
    """The end of the private key block at `at`, a hyphen; 0 where there is none."""
    if not starts_with(data, at, end, _BEGIN):
        return 0
    k = at + len(_BEGIN)
    while k < end and data[k] != 45 and data[k] != 10 and not starts_with(data, k, end, _PRIVATE):
        k += 1
    if not starts_with(data, k, end, _PRIVATE):
        return 0
    stop = min(end, at + _LONGEST_BLOCK)
    while k < stop:
        if data[k] == 45 and starts_with(data, k, end, _END):
            k += len(_END)
            while k < end and data[k] != 10 and data[k] != 45:
                k += 1
            while k < end and data[k] == 45:
                k += 1
            return k
        k += 1
    return 0


@kernel
def secret_at(data, sign, begin, end):  # type: ignore[no-untyped-def]
    """The span of the value after = or : at `sign` if its name says that it is secret and it looks drawn by lot; (0, 0) if not."""
    b = sign
    while b > begin and (data[b - 1] == 32 or data[b - 1] == 34 or data[b - 1] == 39):
        b -= 1
    a = b
    while a > begin and is_letter(data[a - 1]):
        a -= 1
    if a == b or not is_listed(data, a, b, _NAMES.letters, _NAMES.ends):
        return 0, 0
    k = sign + 1
    while k < end and (data[k] == 32 or data[k] == 34 or data[k] == 39) and k - sign < 4:
        k += 1
    stop = k
    while stop < end and (is_word(data[stop]) or data[stop] == 43 or 45 <= data[stop] <= 47) and data[stop] < 0x80:
        stop += 1
    while stop < end and data[stop] == 61:
        stop += 1
    while stop > k and data[stop - 1] == 46:
        stop -= 1
    if not 16 <= stop - k <= 200 or not is_mixed(data, k, stop, 3):
        return 0, 0
    return k, stop
