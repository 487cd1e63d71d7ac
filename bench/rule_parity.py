"""Keep/drop agreement of the rule sets and of C4 with datatrove's filters, document by document, with every kind of disagreement.

    python bench/rule_parity.py --peer PYTHON --data FOLDER [--every N] [--languages en] [--sets c4,fineweb]

PYTHON is an interpreter of an environment of its own with `datatrove[processing]` and `spacy`; it runs this file with `--verdicts` and
writes one JSON line a document. FOLDER holds .jsonl.gz files with `id`, `text` and `meta.lang`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SETS = ("gopher_quality", "gopher_repetition", "fineweb", "c4")
SHOWN = 12


def documents(folder: Path, every: int, languages: set[str]) -> Iterator[tuple[str, str]]:
    """Identity and text of every N-th document of the wanted languages (all, where none is given)."""
    number = 0
    for file in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if languages and record.get("meta", {}).get("lang") not in languages:
                    continue
                if number % every == 0:
                    yield record["id"], record["text"]
                number += 1


def digest(text: str) -> str:
    """Says whether two texts are equal."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def peer_verdicts(folder: Path, every: int, languages: set[str], sets: list[str], out: Path) -> None:
    """Runs in the peer's environment: the first reason of each filter, null where it keeps, `error: ...` where it raises.

    With C4, also the digest of the text that it leaves.
    """
    from datatrove.data import Document  # type: ignore[import-not-found]
    from datatrove.pipeline.filters import (  # type: ignore[import-not-found]
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    kinds = dict(zip(SETS, (GopherQualityFilter, GopherRepetitionFilter, FineWebQualityFilter, C4QualityFilter), strict=True))
    filters = {name: kinds[name]() for name in sets}
    with out.open("w", encoding="utf-8") as file:
        for identity, text in documents(folder, every, languages):
            verdict: dict[str, str | None] = {}
            for name, chosen in filters.items():
                try:
                    document = Document(text=text, id=identity)
                    answer = chosen.filter(document)
                    verdict[name] = None if answer is True else answer[1]
                    if name == "c4":
                        verdict["text"] = digest(document.text)
                except Exception as error:
                    verdict[name] = f"error: {type(error).__name__}"
            file.write(json.dumps(verdict) + "\n")


def own_verdicts(texts: list[str], sets: list[str]) -> dict[str, list[list[dict[str, Any]]]]:
    """Every failing rule of each document by rule set; and C4's texts, as failures of a set ``text``."""
    import pyarrow as pa

    from curate.edit.c4 import c4
    from curate.rules import evaluate, resolve_rules
    from curate.signals import compute_signals

    found: dict[str, list[list[dict[str, Any]]]] = {}
    array = pa.array(texts, pa.large_string())
    if "c4" in sets:
        edited = c4(array)
        found["c4"] = [[] for _ in texts]
        for row, rule in zip(edited.failures.row.tolist(), edited.failures.rule, strict=True):
            found["c4"][row] = [{"rule": rule.removeprefix("c4_")}]
        found["text"] = [[{"rule": digest(text)}] for text in edited.texts.to_pylist()]
    if rules := [name for name in sets if name != "c4"]:
        signals = pa.Table.from_batches([compute_signals(array)])
        found |= {name: evaluate(signals, resolve_rules([{"set": name}])).column("failures").to_pylist() for name in rules}
    return found


def report(name: str, identities: list[str], own: list[list[dict[str, Any]]], peer: list[str | None]) -> None:
    """Prints the agreement of one rule set and its disagreements by kind."""
    same = sum(bool(failures) == (theirs is not None) for failures, theirs in zip(own, peer, strict=True))
    reasons = sum((failures[0]["rule"] if failures else None) == theirs for failures, theirs in zip(own, peer, strict=True))
    kept = sum(theirs is None for theirs in peer)
    print(f"{name}: keep/drop {same}/{len(peer)} = {same / len(peer):.5f}; first reason {reasons / len(peer):.5f}; peer keeps {kept}")
    kinds: Counter[tuple[str | None, str | None]] = Counter()
    for identity, failures, theirs in zip(identities, own, peer, strict=True):
        ours = failures[0]["rule"] if failures else None
        if ours == theirs:
            continue
        kinds[ours, theirs] += 1
        if bool(failures) != (theirs is not None) and kinds[ours, theirs] <= SHOWN:
            print(f"    {identity}: ours {failures[:1] or 'keep'}, theirs {theirs or 'keep'}")
    for (ours, theirs), count in kinds.most_common():
        print(f"  {count:6d} ours {ours or 'keep'}, theirs {theirs or 'keep'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="interpreter with datatrove")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--languages", default="")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--verdicts", type=Path, help="run as the peer and write here; or read what an earlier run wrote")
    options = parser.parse_args()
    languages = {part for part in options.languages.split(",") if part}
    sets = options.sets.split(",")
    if options.verdicts and not options.peer and not options.verdicts.exists():
        peer_verdicts(options.data, options.every, languages, sets, options.verdicts)
        return
    if not options.data.is_dir():
        sys.exit(f"no data in {options.data}: nothing is compared")
    with tempfile.TemporaryDirectory() as scratch:
        out = options.verdicts or Path(scratch) / "verdicts.jsonl"
        if not out.exists():
            command = [options.peer, __file__, "--data", options.data, "--every", str(options.every), "--verdicts", out]
            subprocess.run([*command, "--languages", options.languages, "--sets", options.sets], check=True)
        peer = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    pairs = list(documents(options.data, options.every, languages))
    identities, texts = [identity for identity, _ in pairs], [text for _, text in pairs]
    size = sum(len(text.encode()) for text in texts)
    print(f"{len(texts)} documents, {size / 1e6:.1f} MB from {options.data}, every {options.every}, languages {options.languages or 'all'}")
    own = own_verdicts(texts, sets)
    for name in sets:
        report(name, identities, own[name], [verdict[name] for verdict in peer])
    if "c4" in sets:
        kept = [row for row, verdict in enumerate(peer) if verdict["c4"] is None and not own["c4"][row]]
        same = sum(own["text"][row][0]["rule"] == peer[row]["text"] for row in kept)
        print(f"c4: rewritten texts equal in {same} of {len(kept)} documents that both keep")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
