"""Strings that the English tokenizer treats as wholes, and where it cuts them: clitics, abbreviations, clock times, emoticons.

The set is that of spaCy's blank English tokenizer, built here from its parts: a stem and the endings that may follow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

Pieces = tuple[str, ...]
"""The words an exception is cut into; their concatenation is the exception."""

_PRONOUN_ENDINGS: dict[str, str] = {
    "i": "m m+a ll ll+ve d d+ve ve",
    "you": "ll ll+ve d d+ve ve re",
    "we": "ll ll+ve d d+ve ve re",
    "they": "ll ll+ve d d+ve ve re",
    "he": "ll ll+ve d d+ve s",
    "she": "ll ll+ve d d+ve s",
    "it": "ll ll+ve d d+ve s",
}
_QUESTION_WORDS = "who what when where why how there that this these those"
_NEGATED_LONG = "ca could do does did had may might must need ought sha should wo would"  # also with 've
_NEGATED = "ai are is was were have has dare"
_NOT_CONTRACTIONS = frozenset(["ill", "its", "hell", "shell", "shed", "were", "well", "whore"])

_ABBREVIATIONS = (
    "Mt. Ak. Ala. Apr. Ariz. Ark. Aug. Calif. Colo. Conn. Dec. Del. Feb. Fla. Ga. Ia. Id. Ill. Ind. Jan. Jul. Jun. Kan. Kans. Ky. "
    "La. Mar. Mass. Mich. Minn. Miss. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Nov. Oct. Okla. Ore. Pa. S.C. Sep. Sept. Tenn. "
    "Va. Wash. Wis. a.m. p.m. Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. i.e. I.e. I.E. Gen. Gov. Inc. Jr. Ltd. Md. Messrs. "
    "Mo. Mont. Mr. Mrs. Ms. Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s."
)
_WHOLES = (
    "'s 'S \u2018s \u2018S 'd 're 'em em 'll ll 'nuff nuff 'bout 'cause 'Cause 'cos 'Cos 'coz 'Coz 'cuz 'Cuz and/or w/o ma'am Ma'am "
    "o'clock O'clock ' '' C++ <space> \\t \\n \\\") \u2014"
)
_DROPPED_G = "doin goin nothin nuthin ol somethin lovin havin"
_SPLIT = (
    "y'|all y|all how|'d|'y How|'d|'y not|'ve not|ve Not|'ve Not|ve can|not Can|not gon|na Gon|na got|ta Got|ta let|'s Let|'s c'm|on C'm|on"
)

# Emoticons: eyes, nose, mouth; then those of other builds.
_FACES: tuple[tuple[str, str, str], ...] = (
    (":", " -", ") )) ))) ( (( ((( ] } / | P p O o 0 * 3 > X x D"),
    (";", " -", ") D"),
    ("=", " ", ") ( ] [ / | D 3"),
    ("8", " -", ") D"),
    (":'", " -", ") ("),
    ("(", " -", ": ;"),
    ("(", " ", "="),
    (")", " -", ":"),
    ("[", " -", ":"),
    ("[ ]", " ", "="),
    ("x X", " ", "D DD"),
    ("<", " ", "3 33 333"),
)
_ODD_FACES = (
    ":o) (o: (-8 =D :1 :() >:( >:o ^_^ ^__^ ^___^ >.< >.> <.< ._. ;_; -_- -__- v.v V.V v_v V_V o_o o_O O_o O_O 0_o o_0 0_0 o.O O.o O.O "
    "o.o 0.0 o.0 0.o @_@ (^_^) (-_-) (._.) (>_<) (*_*) (¬_¬) ಠ_ಠ ಠ︵ಠ (ಠ_ಠ) ¯\\(ツ)/¯ (╯°□°）╯︵┻━┻ ><(((*> </3"
)


def _with_title(words: str) -> Iterator[str]:
    """Each word as it is and with a capital first letter."""
    for word in words.split():
        yield word
        yield word.title()


def _contractions() -> Iterator[Pieces]:
    """Stems with clitics, with and without the apostrophes."""

    def both(stem: str, endings: str) -> Iterator[Pieces]:
        for ending in endings.split():
            parts = ending.split("+")
            bare = (stem, *parts)
            # The a of I'ma and the not of can't carry no apostrophe of their own in front.
            marked = (stem, *("n't" if part == "nt" else part if part == "a" else "'" + part for part in parts))
            yield from (pieces for pieces in (bare, marked) if "".join(pieces).lower() not in _NOT_CONTRACTIONS)

    for pronoun, endings in _PRONOUN_ENDINGS.items():
        for stem in _with_title(pronoun):
            yield from both(stem, endings)
    for word in _QUESTION_WORDS.split():
        endings = "ll ll+ve d d+ve"
        endings += "" if word in ("these", "those") else " s"
        endings += "" if word in ("that", "this") else " re ve"
        for stem in _with_title(word):
            yield from both(stem, endings)
    for stem in _with_title(_NEGATED_LONG):
        yield from both(stem, "nt nt+ve")
    for stem in _with_title("could might must should would"):
        yield from both(stem, "ve")
    for stem in _with_title(_NEGATED):
        yield from both(stem, "nt")


def _emoticons() -> Iterator[str]:
    for eyes, noses, mouths in _FACES:
        for eye, nose, mouth in product(eyes.split(), ("" if n == " " else n for n in noses), mouths.split()):
            yield eye + nose + mouth
    yield from _ODD_FACES.split()


def _wholes() -> Iterator[str]:
    """Strings that stay in one piece."""
    yield from f"{_ABBREVIATIONS} {_WHOLES}".split()
    yield from (letter + "." for letter in "abcdefghijklmnopqrstuvwxyzäöü")
    for word in _with_title(_DROPPED_G):
        yield word
        yield word + "'"
    yield from _emoticons()


def exceptions() -> dict[str, Pieces]:
    """Every exception and its pieces; an apostrophe also counts as U+2019."""
    found: dict[str, Pieces] = {}

    def add(pieces: Iterable[Pieces]) -> None:
        found.update(("".join(parts), parts) for parts in pieces)

    add(_contractions())
    add(tuple(entry.split("|")) for entry in _SPLIT.split())
    add((str(hour), half) for hour in range(1, 13) for half in ("am", "a.m.", "pm", "p.m."))
    add(("°", degree, ".") for degree in "cfkCFK")
    add((whole,) for whole in _wholes())
    add([tuple(part.replace("'", "’") for part in parts) for text, parts in found.items() if "'" in text])
    return found
