"""Keep/drop agreement of the rule sets and of C4 with datatrove's filters, document by document, with every kind of disagreement.

    python bench/rule_parity.py --peer PYTHON --data FOLDER [--every N] [--languages en] [--sets c4,fineweb,chain]

`chain` is FineWeb's order, each filter seeing what the one before left (Gopher repetition, Gopher quality, C4 without its terminal-mark
rule, FineWeb), against a curation under the rules and edits of recipes/fineweb.yaml.
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
    filters = {name: kinds[name]() for name in sets if name != "chain"}
    chain = [GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(filter_no_terminal_punct=False), FineWebQualityFilter()]
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
            if "chain" in sets:
                document = Document(text=text, id=identity)
                try:
                    answers = (answer for chosen in chain if (answer := chosen.filter(document)) is not True)
                    first = next(answers, None)
                    verdict["chain"] = None if first is None else first[1]
                except Exception as error:
                    verdict["chain"] = f"error: {type(error).__name__}"
                verdict["chain text"] = digest(document.text)
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
    if "chain" in sets:
        found |= own_chain(texts)
    if rules := [name for name in sets if name not in ("c4", "chain")]:
        signals = pa.Table.from_batches([compute_signals(array)])
        found |= {name: evaluate(signals, resolve_rules([{"set": name}])).column("failures").to_pylist() for name in rules}
    return found


def own_chain(texts: list[str]) -> dict[str, list[list[dict[str, Any]]]]:
    """First failure of each document in a curation in FineWeb's order, and the texts it leaves, as failures of a set ``chain text``."""
    import pyarrow.parquet as pq

    from curate.curate import curate
    from curate.curation import Curation
    from curate.engine import LocalExecutor
    from curate.step import Silent
    from schemas.recipe import Recipe
    from schemas.recipe_file import load_recipe

    ready = load_recipe(Path(__file__).parents[1] / "recipes/fineweb.yaml").model_dump(mode="json", exclude_defaults=True)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "made.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        changes = {
            "sources": {"web": {"reader": "jsonl", "paths": [f"{folder}/made.jsonl"], "max_bad_share": 1}},
            "edits": [edit for edit in ready["edits"] if edit["edit"] == "c4"],
            "dedup": {"exact": False, "near": None},
            "holdout": {"share": 0},
        }
        snapshot = curate(Curation(Path(folder, "lake"), Recipe.model_validate(ready | changes), LocalExecutor(1), Silent()))
        rows = {
            table: [row for file in snapshot.files(table) for row in pq.read_table(Path(folder, "lake", file.path)).to_pylist()]
            for table in ("documents", "verdicts")
        }
    # C4's reasons are prefixed here, since they stand beside other sets'.
    reasons = {row["doc_id"]: row["reason"] for row in rows["verdicts"]}
    newest = {row["record"]: row for row in rows["documents"]}
    found: dict[str, list[list[dict[str, Any]]]] = {"chain": [[] for _ in texts], "chain text": [[{"rule": digest("")}] for _ in texts]}
    for record, row in newest.items():
        reason = reasons[row["doc_id"]]
        found["chain"][record] = [] if reason is None else [{"rule": reason.removeprefix("c4_")}]
        found["chain text"][record] = [{"rule": digest(row["text"])}]
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
    for name, texts_of in (("c4", "text"), ("chain", "chain text")):
        if name in sets:
            kept = [row for row, verdict in enumerate(peer) if verdict[name] is None and not own[name][row]]
            same = sum(own[texts_of][row][0]["rule"] == peer[row][texts_of] for row in kept)
            print(f"{name}: rewritten texts equal in {same} of {len(kept)} documents that both keep")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
