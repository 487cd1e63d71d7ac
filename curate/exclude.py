"""Reasons to drop a document that are not what its text is like: evaluation text in it, its licence, and that someone asked for it.

Each reason is a row of table ``exclusions``, which names what matched, and the first failures of the document's verdict. Steps run only
where the recipe or the lake has something to exclude.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.contamination import CONTAMINATION_VERSION, ItemIndex
from curate.corpus import column_array, locators, rows_of
from curate.curation import Curation, source_of
from curate.identity import user_doc_id
from curate.loose import LooseText, loose_files, loose_texts
from curate.step import Shard, ShardWriter, Step
from curate.tombstones import read_tombstones
from schemas.curation import Decontaminate
from schemas.errors import InputError
from schemas.store import checksum
from schemas.tables import EXCLUSIONS, FAILURE

Json = Any
STEPS = ("permit", "block", "decontaminate")
_HOST = r"^\s*(?:(?:[A-Za-z][A-Za-z0-9+.\-]*:)?//)?(?:[^/?#@]*@)?(?P<host>[^/:?#\s]+)"
"""The host of an address, with a scheme or without: who asked is not used for want of one."""
_ONCE = Lock()


def exclusion_steps(c: Curation) -> list[tuple[Step, list[Shard]]]:
    """The steps that the recipe asks for, from documents shards to shards of table ``exclusions``."""
    made = [_permit_step(c), _decontaminate_step(c)]
    return [step for step in made if step is not None]


def exclusion_files(c: Curation, shard: int) -> tuple[list[str], list[str]]:
    """Contents and paths of a shard's exclusions, for a step that reads them."""
    entries = [c.steps[name][shard] for name in STEPS if name in c.steps]
    return [entry.content for entry in entries], [entry.files["exclusions"].path for entry in entries if "exclusions" in entry.files]


def with_exclusions(root: Path, failures: pa.Table, paths: Sequence[str]) -> pa.Table:
    """Failures of a shard with its exclusions before them.

    Args:
        root: the lake.
        failures: one column, ``failures``, one row a document.
        paths: files of table ``exclusions`` of the same shard.
    """
    if not paths:
        return failures
    rules = column_array(failures, "failures")
    found = pa.concat_tables([pq.read_table(root / path, partitioning=None) for path in paths])
    fields = [column_array(found, "reason"), column_array(found, "matches").cast(pa.float64()), pa.nulls(found.num_rows, pa.float64())]
    first = pa.StructArray.from_arrays(fields, fields=list(FAILURE))
    old = np.repeat(np.arange(len(rules)), rules.value_lengths().to_numpy(zero_copy_only=False))
    owner = np.concatenate([rows_of(found.column("locator").to_numpy()), old])
    both = pa.concat_arrays([first, rules.flatten()]).take(pa.array(np.argsort(owner, kind="stable")))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(rules)))]).astype(np.int32)
    return pa.table({"failures": pa.ListArray.from_arrays(pa.array(offsets), both, type=pa.list_(FAILURE))})


def exclusion_shards(c: Curation, task: Json) -> list[Shard]:
    """Shards of a step that looks at every documents shard; ``task`` is the same for all."""
    made = []
    for shard, entry in enumerate(c.documents):
        mine = {"shard": shard, "source": source_of(entry), "documents": c.path("read", "documents", shard)}
        made.append(Shard(entry.label, [shard, entry.content], task | mine))
    return made


def write_exclusions(
    writer: ShardWriter, task: Json, documents: pa.Table, rows: NDArray[np.int64], columns: Mapping[str, Any]
) -> Mapping[str, int]:
    """Publish the exclusions of some rows of a documents shard."""
    places = locators(task["shard"], documents.num_rows)[rows]
    ids = documents.column("doc_id").take(pa.array(rows))
    table = {"doc_id": ids, "source": pa.repeat(task["source"], len(rows)), "locator": places, **columns}
    writer.table("exclusions", pa.table([table[name] for name in EXCLUSIONS.names], names=EXCLUSIONS.names))
    return {"documents": documents.num_rows, "excluded": len(rows)}


# Evaluation text.


def _decontaminate_step(c: Curation) -> tuple[Step, list[Shard]] | None:
    wanted = c.recipe.decontaminate
    if wanted is None:
        return None
    found = {name: loose_files(each.paths, f"decontaminate.sets.{name}.paths") for name, each in wanted.sets.items()}
    files = {name: [[path, checksum(Path(place))] for path, place in places] for name, places in found.items()}
    fields = {name: each.fields for name, each in wanted.sets.items()}
    # A list, since the order of sets says which is named, and keys of JSON are sorted.
    settings = [wanted.ngram, wanted.min_words, [[name, fields[name], files[name]] for name in wanted.sets], CONTAMINATION_VERSION]
    task = {"decontaminate": wanted.model_dump_json(), "settings": json.dumps(settings), "batch_rows": c.batch_rows}
    return Step("decontaminate", 1, settings, _decontaminate), exclusion_shards(c, task)


def _decontaminate(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["documents"] is None:
        return {"documents": 0, "excluded": 0}
    with _ONCE:
        index, names = _item_index(task["decontaminate"], task["settings"])
    file = pq.ParquetFile(writer.root / task["documents"], memory_map=True)
    found, size = [], 0
    for batch in file.iter_batches(batch_size=task["batch_rows"], columns=["text"]):
        texts = batch.column("text").cast(pa.large_string())
        size += texts.nbytes
        found.append(index.overlaps(texts))
    item, matches = (np.concatenate(parts) for parts in zip(*found, strict=True))
    rows = np.flatnonzero(item >= 0)
    columns = {
        "reason": pa.array([f"contaminated_{names[i][0]}" for i in item[rows]], pa.string()),
        "detail": pa.array([names[i][1] for i in item[rows]], pa.string()),
        "matches": pa.array(matches[rows]),
    }
    return {**write_exclusions(writer, task, file.read(columns=["doc_id"]), rows, columns), "bytes": size}


@lru_cache(maxsize=4)
def _item_index(wanted: str, settings: str) -> tuple[ItemIndex, list[tuple[str, str]]]:
    """The index of all sets, built once in each process, and set and place of each item."""
    recipe = Decontaminate.model_validate_json(wanted)
    items: list[str] = []
    names: list[tuple[str, str]] = []
    for name, each in recipe.sets.items():
        for text in loose_texts(each.paths, each.fields, f"decontaminate.sets.{name}"):
            items.append(text.text)
            names.append((name, _place(text)))
    return ItemIndex(items, recipe.ngram, recipe.min_words), names


def _place(text: LooseText) -> str:
    return f"{text.file}, record {text.record}" + (f", {text.field}" if text.field else "")


# Licences and those who asked.


def _permit_step(c: Curation) -> tuple[Step, list[Shard]] | None:
    allowed = {name: source.licenses for name, source in c.recipe.sources.items() if source.licenses is not None}
    domains, ids = (_listed(getattr(c.recipe.opt_out, kind), f"opt_out.{kind}") for kind in ("domains", "ids"))
    tombstones = [name.hex() for name in read_tombstones(c.root).to_pylist()]
    if not allowed and not domains and not ids and not tombstones:
        return None
    settings = {
        "forgotten": tombstones,
        "licenses": allowed,
        "domains": sorted(set(map(_plain, domains))),
        "ids": sorted(map(_identity, ids)),
    }
    key = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16).hexdigest()
    return Step("permit", 2, key, _permit), exclusion_shards(c, settings)


def _listed(patterns: Sequence[str], where: str) -> list[str]:
    """Lines of files, without empty ones and those that begin with a number sign."""
    found = []
    for _, place in loose_files(patterns, where) if patterns else ():
        try:
            lines = Path(place).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read: {error}", where=place, fix="give a UTF-8 file with one entry a line") from error
        found += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return found


def _identity(name: str) -> str:
    """doc_id in hex of ``source:id``, or the doc_id itself."""
    source, colon, own = name.partition(":")
    if colon:
        return user_doc_id(source, own).hex()
    if not re.fullmatch("[0-9a-fA-F]{32}", name):
        raise InputError(f"{name!r} is neither a doc_id in hex nor source:id", where="opt_out.ids", fix="correct the line")
    return name.lower()


def _permit(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["documents"] is None:
        return {"documents": 0, "excluded": 0}
    documents = pq.read_table(writer.root / task["documents"], columns=["doc_id", "url", "license"], partitioning=None)
    found = dict(_unwanted(documents, task))
    rows = np.array(sorted(found), dtype=np.int64)
    columns = {name: pa.array([found[row][place] for row in sorted(found)], pa.string()) for place, name in enumerate(("reason", "detail"))}
    return write_exclusions(writer, task, documents, rows, columns | {"matches": pa.nulls(len(rows), pa.int64())})


def _unwanted(documents: pa.Table, task: Json) -> Iterator[tuple[int, tuple[str, str]]]:
    """Row, reason and detail of documents that may not be used; of two reasons of a row the last counts."""
    if (allowed := task["licenses"].get(task["source"])) is not None:
        known = {name.lower() for name in allowed}
        for row, name in enumerate(documents.column("license").to_pylist()):
            if (name or "").strip().lower() not in known:
                yield row, ("license_not_allowed", name or "none stated")
    if task["domains"]:
        blocked = frozenset(task["domains"])
        hosts = pc.struct_field(pc.extract_regex(column_array(documents, "url"), _HOST), "host").dictionary_encode()
        listed = [_domain(_plain(str(host)), blocked) for host in hosts.dictionary.to_pylist()]
        for row, host in enumerate(hosts.indices.to_pylist()):
            if host is not None and (domain := listed[host]) is not None:
                yield row, ("opted_out", f"domain {domain}")
    for names, said in ((task["ids"], ("opted_out", "id")), (task["forgotten"], ("forgotten", "gristmill forget"))):
        ids = pa.array([bytes.fromhex(name) for name in names], pa.binary(16))
        for row in np.flatnonzero(pc.is_in(documents.column("doc_id"), ids).to_numpy()).tolist():
            yield row, said


def _plain(host: str) -> str:
    """A host's one form: lower case, and names in other scripts as they are registered (xn--)."""
    name = host.lower().strip(".")
    try:
        return name if name.isascii() else name.encode("idna").decode()
    except UnicodeError:
        return name


def _domain(host: str, blocked: frozenset[str]) -> str | None:
    """The listed domain that a host is or lies under."""
    parts = host.split(".")
    return next((name for n in range(len(parts)) if (name := ".".join(parts[n:])) in blocked), None)
