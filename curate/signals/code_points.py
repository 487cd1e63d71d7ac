"""Classes of code points: one 32-bit mask for each, from which all signal kernels take their decisions.

The affix classes follow spaCy's base rules, whose tables are those of Unicode 11; alphabetic and white-space classes follow Python.
Code points assigned after Unicode 14 belong to no class, so every Python from 3.11 gives the same table.
"""

from __future__ import annotations

import unicodedata

import numpy as np
import numpy.typing as npt

from curate.signals.kernels import at, inlined, small

TABLE_SIZE = 0x40000
"""Code points from here on (none is a letter, a mark or white space) share the last entry."""
LAST_CLASS = TABLE_SIZE - 1

SPACE = np.uint32(1 << 0)  # white space by str.isspace
BREAK = np.uint32(1 << 1)  # ends a line by str.splitlines
ALPHA = np.uint32(1 << 2)  # alphabetic by str.isalpha
PUNCT = np.uint32(1 << 3)  # in the punctuation set of Gopher's word rules
TERMINAL = np.uint32(1 << 4)  # Unicode's Sentence_Terminal
LETTER = np.uint32(1 << 5)  # letter for infix rules
LOWER = np.uint32(1 << 6)  # lower case or caseless letter
UPPER = np.uint32(1 << 7)  # upper case or caseless letter
DIGIT = np.uint32(1 << 8)  # ASCII digit
PREFIX = np.uint32(1 << 9)  # split off a word's start by itself
SUFFIX = np.uint32(1 << 10)  # split off a word's end by itself
ICON = np.uint32(1 << 11)  # symbol, split anywhere
QUOTE = np.uint32(1 << 12)
CURRENCY = np.uint32(1 << 13)
BEFORE_DOT = np.uint32(1 << 14)  # a final full stop after it is split off
UNIT_END = np.uint32(1 << 15)  # last character of a unit of measure
HOT = np.uint32(1 << 16)  # any rule can look at it
HOST = np.uint32(1 << 17)  # may be part of a host name's label
WORD = np.uint32(1 << 18)  # alphanumeric or underscore
SENTENCE_END = np.uint32(1 << 19)
CLOSER = np.uint32(1 << 20)  # may stand between a sentence's end and the space after it
CAPITAL = np.uint32(1 << 22)  # ASCII capital letter
INFIX = np.uint32(1 << 23)  # may split a word in its middle
CONTENT = np.uint32(1 << 24)  # not in the punctuation set
DETAIL = np.uint32(1 << 25)  # ends a sentence or is counted by itself
JAY = np.uint32(1 << 26)  # begins the word javascript

_Ranges = tuple[tuple[int, int], ...]

# Code points that Unicode 15.0 and 15.1 assigned; later versions are not met before Python 3.14.
_AFTER_UNICODE_14: _Ranges = (
    (0x0CF3, 0x0CF3), (0x0ECE, 0x0ECE), (0x10EFD, 0x10EFF), (0x1123F, 0x11241), (0x11B00, 0x11B09), (0x11F00, 0x11F59),
    (0x1342F, 0x1342F), (0x13439, 0x13455), (0x1B132, 0x1B132), (0x1B155, 0x1B155), (0x1D2C0, 0x1D2D3), (0x1DF25, 0x1DF2A),
    (0x1E030, 0x1E08F), (0x1E4D0, 0x1E4F9), (0x1F6DC, 0x1F6DC), (0x1F774, 0x1F776), (0x1F77B, 0x1F77F), (0x1F7D9, 0x1F7D9),
    (0x1FA75, 0x1FA77), (0x1FA87, 0x1FA88), (0x1FAAD, 0x1FAAF), (0x1FABB, 0x1FABF), (0x1FACE, 0x1FACF), (0x1FADA, 0x1FADB),
    (0x1FAE8, 0x1FAE8), (0x1FAF7, 0x1FAF8), (0x2EBF0, 0x2EE5D), (0x2FFC, 0x2FFF), (0x31EF, 0x31EF), (0x31350, 0x323AF),
)  # fmt: skip

# Symbols (category So) that are not split as icons: those of Unicode 12 to 14, and U+166D, which changed its category.
_NOT_ICONS: _Ranges = (
    (0x166D, 0x166D), (0x2B97, 0x2B97), (0x2BC9, 0x2BC9), (0x2BFF, 0x2BFF), (0x2E50, 0x2E51), (0x32FF, 0x32FF), (0xFD40, 0xFD4F),
    (0xFDCF, 0xFDCF), (0xFDFE, 0xFDFF), (0x1019C, 0x1019C), (0x11FD5, 0x11FF1), (0x1CF50, 0x1CFC3), (0x1D1E9, 0x1D1EA),
    (0x1E14F, 0x1E14F), (0x1ED2E, 0x1ED2E), (0x1F10D, 0x1F10F), (0x1F16C, 0x1F16F), (0x1F1AD, 0x1F1AD), (0x1F6D5, 0x1F6DF),
    (0x1F6FA, 0x1F6FC), (0x1F7E0, 0x1F7F0), (0x1F8B0, 0x1F8B1), (0x1F90C, 0x1F90F), (0x1F93F, 0x1F93F), (0x1F971, 0x1F972),
    (0x1F977, 0x1F979), (0x1F97B, 0x1F97B), (0x1F9A3, 0x1F9AF), (0x1F9BA, 0x1F9BF), (0x1F9C3, 0x1F9CF), (0x1FA00, 0x1FA5F),
    (0x1FA70, 0x1FBCA),
)  # fmt: skip

# Scripts with case whose letters the rules know.
_CASED: _Ranges = (
    (0x41, 0x5A), (0x61, 0x7A), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x1BF), (0x1C4, 0x2AF), (0x386, 0x386), (0x388, 0x38A),
    (0x38C, 0x38C), (0x38E, 0x38F), (0x391, 0x3A9), (0x3AC, 0x3AF), (0x3B1, 0x3C9), (0x3CC, 0x3CE), (0x400, 0x401), (0x403, 0x40A),
    (0x40C, 0x40D), (0x410, 0x451), (0x453, 0x45A), (0x45C, 0x45D), (0x490, 0x491), (0x496, 0x497), (0x4A2, 0x4A3), (0x4AE, 0x4AF),
    (0x4BA, 0x4BB), (0x4D8, 0x4D9), (0x4E8, 0x4E9), (0x1D00, 0x1D25), (0x1D6B, 0x1D77), (0x1D79, 0x1D9A), (0x1E00, 0x1EFF),
    (0x2C60, 0x2C7B), (0x2C7E, 0x2C7F), (0xA722, 0xA76F), (0xA771, 0xA787), (0xA78B, 0xA78E), (0xA790, 0xA7B9), (0xA7FA, 0xA7FA),
    (0xAB30, 0xAB5A), (0xAB60, 0xAB64), (0xFF21, 0xFF3A), (0xFF41, 0xFF5A),
)  # fmt: skip

# Hebrew, Arabic, Indic, Hangul, Ethiopic, kana and Han blocks: whole blocks, marks and punctuation included.
_CASELESS: _Ranges = (
    (0x591, 0x5F4), (0x620, 0x64A), (0x66E, 0x6D5), (0x6E5, 0x6FF), (0x750, 0x77F), (0x8A0, 0x8BD), (0x900, 0x9FF), (0xB80, 0xCFF),
    (0xD80, 0xDFF), (0x1100, 0x137F), (0x2E80, 0x2FDF), (0x2FF0, 0x30FF), (0x31C0, 0x31EF), (0x3200, 0x4DBF), (0x4E00, 0x9FFF),
    (0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0xFB1D, 0xFBB1), (0xFBD3, 0xFD3D), (0xFD50, 0xFDC7), (0xFDF0, 0xFDFB), (0xFE30, 0xFE4F),
    (0xFE70, 0xFEFC), (0x1EE00, 0x1EEBB), (0x1F200, 0x1F2FF), (0x20000, 0x2A6DF), (0x2A700, 0x2EBEF), (0x2F800, 0x2FA1F),
)  # fmt: skip

# Unicode's Sentence_Terminal property.
_TERMINALS: _Ranges = (
    (0x21, 0x21), (0x2E, 0x2E), (0x3F, 0x3F), (0x589, 0x589), (0x61D, 0x61F), (0x6D4, 0x6D4), (0x700, 0x702), (0x7F9, 0x7F9),
    (0x837, 0x837), (0x839, 0x839), (0x83D, 0x83E), (0x964, 0x965), (0x104A, 0x104B), (0x1362, 0x1362), (0x1367, 0x1368),
    (0x166E, 0x166E), (0x1735, 0x1736), (0x17D4, 0x17D6), (0x17D9, 0x17DA), (0x1803, 0x1803), (0x1809, 0x1809), (0x1944, 0x1945),
    (0x1AA8, 0x1AAB), (0x1B5A, 0x1B5B), (0x1B5E, 0x1B5F), (0x1B7D, 0x1B7E), (0x1C3B, 0x1C3C), (0x1C7E, 0x1C7F), (0x203C, 0x203D),
    (0x2047, 0x2049), (0x2E2E, 0x2E2E), (0x2E3C, 0x2E3C), (0x2E53, 0x2E54), (0x3002, 0x3002), (0xA4FF, 0xA4FF), (0xA60E, 0xA60F),
    (0xA6F3, 0xA6F3), (0xA6F7, 0xA6F7), (0xA876, 0xA877), (0xA8CE, 0xA8CF), (0xA92F, 0xA92F), (0xA9C8, 0xA9C9), (0xAA5D, 0xAA5F),
    (0xAAF0, 0xAAF1), (0xABEB, 0xABEB), (0xFE52, 0xFE52), (0xFE56, 0xFE57), (0xFF01, 0xFF01), (0xFF0E, 0xFF0E), (0xFF1F, 0xFF1F),
    (0xFF61, 0xFF61), (0x10A56, 0x10A57), (0x10F55, 0x10F59), (0x10F86, 0x10F89), (0x11047, 0x11048), (0x110BE, 0x110C1),
    (0x11141, 0x11143), (0x111C5, 0x111C6), (0x111CD, 0x111CD), (0x111DE, 0x111DF), (0x11238, 0x11239), (0x1123B, 0x1123C),
    (0x112A9, 0x112A9), (0x1144B, 0x1144C), (0x115C2, 0x115C3), (0x115C9, 0x115D7), (0x11641, 0x11642), (0x1173C, 0x1173E),
    (0x11944, 0x11944), (0x11946, 0x11946), (0x11A42, 0x11A43), (0x11A9B, 0x11A9C), (0x11C41, 0x11C42), (0x11EF7, 0x11EF8),
    (0x11F43, 0x11F44), (0x16A6E, 0x16A6F), (0x16AF5, 0x16AF5), (0x16B37, 0x16B38), (0x16B44, 0x16B44), (0x16E98, 0x16E98),
    (0x1BC9F, 0x1BC9F), (0x1DA88, 0x1DA88),
)  # fmt: skip

_PUNCT_EXTRA = "«´»–—’“”„…∶━►、〈〉《》「」【】％（），１：；～"
_CONTROLS: _Ranges = ((0, 9), (11, 31), (127, 159))

_MARKS = "….,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪".replace(".", "")
_QUOTES = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉〈〉⟦⟧"
_CURRENCIES = "$£€¥฿₽﷼₴₠₡₢₣₤₥₦₧₨₩₪₫₭₮₯₰₱₲₳₵₶₷₸₹₺₻₼₾₿"
_PREFIX_ONLY = "§%="
_DASHES = "—–"


@inlined
def class_of(classes, code):  # type: ignore[no-untyped-def]
    """The class mask of a code point."""
    return classes[min(np.int64(code), LAST_CLASS)]


@small
def point_of(points, s, k):  # type: ignore[no-untyped-def]
    """The code point at s[k]: of a text coded in bytes what `points` says of its byte."""
    return points[at(s, k)] if s.itemsize == 1 else np.uint32(at(s, k))


def _mark(table: npt.NDArray[np.uint32], members: str | _Ranges, *flags: np.uint32) -> None:
    """Sets flags for the characters of a string or the ranges (inclusive ends) of a tuple."""
    for member in members:
        first, last = (ord(member), ord(member)) if isinstance(member, str) else member
        for flag in flags:
            table[first : last + 1] |= flag


def class_table() -> npt.NDArray[np.uint32]:
    """Builds the mask of every code point below TABLE_SIZE; about a tenth of a second."""
    table = np.zeros(TABLE_SIZE, np.uint32)
    for code in range(TABLE_SIZE):
        char = chr(code)
        if char.isalpha():
            table[code] |= ALPHA | WORD
        elif char.isalnum():
            table[code] |= WORD
        elif char.isspace():
            table[code] |= SPACE
        elif unicodedata.category(char) == "So":
            table[code] |= ICON
    for first, last in _AFTER_UNICODE_14:
        table[first : last + 1] = 0
    for first, last in _NOT_ICONS:
        table[first : last + 1] &= ~ICON
    _mark(table, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", BREAK)
    _mark(table, ((0x41, 0x5A),), CAPITAL)
    _mark(table, "0123456789", DIGIT)
    _mark(table, "_", WORD)
    _mark_letters(table)
    _mark_affixes(table)
    _mark(table, _TERMINALS, TERMINAL, PUNCT)
    _mark(table, _CONTROLS, PUNCT)
    _mark(table, tuple((c, c) for c in range(33, 127) if not chr(c).isalnum()), PUNCT)
    _mark(table, _PUNCT_EXTRA, PUNCT)
    _mark(table, ".!?…。！？｡", SENTENCE_END)
    _mark(table, "\"')]}’”»」』）", CLOSER)
    _mark(table, "jJ", JAY)
    table[(table & PUNCT) == 0] |= CONTENT
    table[(table & SENTENCE_END) != 0] |= DETAIL
    _mark(table, "#{", DETAIL)
    return table


def _mark_letters(table: npt.NDArray[np.uint32]) -> None:
    """Sets the letter classes that the splitting rules look at."""
    for first, last in _CASED:
        for code in range(first, last + 1):
            table[code] |= LETTER
            category = unicodedata.category(chr(code))
            if category == "Ll" or code == 0x294:
                table[code] |= LOWER
            elif category == "Lu" or code == 0x3A2:
                table[code] |= UPPER
    _mark(table, _CASELESS, LETTER, LOWER, UPPER)
    _mark(table, ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A), (0xA1, 0xFFFF)), HOST)


def _mark_affixes(table: npt.NDArray[np.uint32]) -> None:
    """Sets the classes of characters that are split off words."""
    icons = (table & ICON) != 0
    table[icons] |= PREFIX | SUFFIX
    _mark(table, _MARKS + _QUOTES + _DASHES, PREFIX, SUFFIX)
    _mark(table, _PREFIX_ONLY + _CURRENCIES, PREFIX)
    _mark(table, _CURRENCIES, CURRENCY)
    _mark(table, _QUOTES, QUOTE)
    # The character class before a split full stop was written from alternations: their bars and brackets are members.
    _mark(table, _MARKS + _QUOTES + "%²-+|(?:)", BEFORE_DOT)
    _mark(table, "0123456789", BEFORE_DOT)
    table[(table & LOWER) != 0] |= BEFORE_DOT
    _mark(table, "".join({unit[-1] for unit in UNITS}), UNIT_END)
    _mark(table, "+-*^.,–—~:<>=/…", INFIX)
    table[icons] |= INFIX
    _mark(table, "+-*^.~:<>=/%²³", HOT)
    table[(table & (PREFIX | SUFFIX | INFIX | CURRENCY)) != 0] |= HOT


_LENGTHS = "km m dm cm mm км м дм см мм كم م سم مم"
_OTHER_UNITS = (
    "ha µm nm yd in ft kg g mg µg t lb oz m/s km/h kmh mph hPa Pa mbar mb MB kb KB gb GB tb TB T G M K % нм кг г мг м/с км/ч кПа Па "
    "мбар Кб КБ кб Мб МБ мб Гб ГБ гб Тб ТБ тбكم غرام جرام جم كغ ملغ كوب اكواب"
)
UNITS: tuple[str, ...] = tuple(length + power for length in _LENGTHS.split() for power in ("", "²", "³")) + tuple(_OTHER_UNITS.split())
"""Units split off a number before them. One entry joins two by a slip in the rules followed; it is kept for equal tokens."""
