"""What other rules would do to a curated lake, from its stored signals alone: nothing is read, written or computed over text.

Documents are found by the same steps as in a curation, under an executor that refuses to work, so that a change that needs a pass over
text is told from one that does not by the very keys that a curation would look for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.corpus import Corpus, column_array, id_hashes, rows_of
from curate.curate import measure, read
from curate.curation import Curation, source_of
from curate.edit.failures import after_edits, edit_files
from curate.exclude import exclusion_files, with_exclusions
from curate.filter import failures_of, rules_of
from curate.scores import read_signals, signal_files
from curate.step import Shard, Silent, Step
from schemas.errors import GristmillError
from schemas.families import FAMILIES
from schemas.manifest import Entry, Snapshot, read_snapshot
from schemas.recipe import Recipe
from schemas.store import bring, here
from schemas.tables import FAILURE, VERDICTS

SAMPLED = 10
EXCERPT = 200
BYTES_PER_TOKEN = 4.0
"""Of a source that has no tokenised document, in a lake that has none either."""


class NotStored(GristmillError):
    """A change that cannot be judged by what the lake holds: it needs a pass over text."""


class _Refusing:
    """An executor that finds what is stored, and refuses to compute."""

    workers = 0

    def run(self, function: Callable[..., Any], tasks: Sequence[Any], processes: bool) -> Iterator[tuple[int, Any]]:
        if tasks and tasks[0][1].name == "generation":  # a record of settings, which other rules are part of: made, and not published
            yield from ((turn, _record(step, shard)) for turn, (_, step, shard, _) in enumerate(tasks))
        elif tasks:
            raise _not_stored(tasks[0][1].name, len(tasks))


def _not_stored(step: str, shards: int) -> NotStored:
    what = "counts repeated ids" if step == "repeats" else "computes a signal" if step.startswith("score_") else "goes over text"
    what = "judges what is edited then" if step.startswith("edit_") and step.endswith("_rules") else what
    fix = "run `gristmill curate RECIPE` with the change; rules and thresholds over stored signals need none"
    if step in FAMILIES:
        what = "counts signals that nothing in the recipe named when the lake was curated"
        fix = f"run `gristmill curate RECIPE` with the change, or with `families: [{step}]` in the sources to have them at hand"
    return NotStored(f"needs a new pass: step {step!r}, which {what}, is not stored for {shards} shards", where="what-if", fix=fix)


def _record(step: Step, shard: Shard) -> Entry:
    return Entry(step.key(shard), step.name, shard.label, {}, {"shards": len(shard.task["shards"])})


@dataclass(frozen=True)
class Effect:
    """What the changed rules do to a source.

    Attributes:
        source: its name.
        kind: ``dropped``: kept or held out now, and would fail; ``passing``: dropped by a rule now, and would fail none (duplicates and
            held-out text are not looked for again).
        documents: how many.
        bytes: of their text.
        tokens: in them.
        estimated: whether some tokens are an estimate from bytes, since those documents were never tokenised.
    """

    source: str
    kind: str
    documents: int
    bytes: int
    tokens: int
    estimated: bool


@dataclass(frozen=True)
class Sampled:
    """A document that would fare otherwise; ``failures`` are all its failing rules under the changed recipe."""

    doc_id: str
    source: str
    kind: str
    before: str
    bytes: int
    failures: list[dict[str, Any]]
    excerpt: str


@dataclass(frozen=True)
class Rehearsal:
    """The whole effect: by source and kind, by rule, and a sample drawn by hash of doc_id."""

    documents: int
    effects: list[Effect]
    rules: list[dict[str, Any]]
    sample: list[Sampled]


def rehearse(root: Path, recipe: Recipe, sample: float = 1.0, tell: Callable[[int, int], None] = lambda done, total: None) -> Rehearsal:
    """Judge a lake's documents by the rules of a recipe and compare with the verdicts of its current snapshot.

    Args:
        root: the lake.
        recipe: the changed recipe.
        sample: the share that the lake was curated with.
        tell: takes how many shards are judged, and how many there are.

    Raises:
        NotStored: the change needs a pass over text, or the lake was curated from something else.
        RecipeError: a rule that cannot be.
        LakeError: nothing is curated.
    """
    snapshot = read_snapshot(root)
    c = Curation(root, recipe, _Refusing(), Silent(), sample, rehearsal=True)
    read(c)
    measure(c)
    stored = [entry.content for entry in snapshot.steps["read"]]
    if stored != [entry.content for entry in c.documents]:
        raise NotStored(
            "the lake's current snapshot holds other documents than this recipe reads",
            where="what-if",
            fix="run `gristmill curate RECIPE` first, or name the --lake and --sample that it was curated with",
        )
    bring(root, [file.path for entries in c.steps.values() for each in entries for name, file in each.files.items() if name != "documents"])
    parts = []
    for shard in range(len(c.documents)):
        tell(shard, len(c.documents))
        parts.append(_compare(c, snapshot, shard))
    changed = pa.concat_tables([part for part in parts if part is not None] or [_CHANGED.empty_table()])
    documents = sum(file.rows for file in snapshot.files("verdicts"))
    return Rehearsal(documents, _effects(changed, snapshot), _by_rule(changed), _sample(c, changed))


_CHANGED = pa.schema(
    [
        *(VERDICTS.field(name) for name in ("doc_id", "source", "locator", "bytes")),
        pa.field("before", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("failures", pa.list_(FAILURE)),
        pa.field("tokens", pa.int64()),
    ]
)


def _compare(c: Curation, snapshot: Snapshot, shard: int) -> pa.Table | None:
    """Documents of a shard whose fate would change, as ``_EMPTY`` declares; tokens are null where there are none."""
    files = signal_files(c.steps, c.recipe.signals, shard)
    judged = snapshot.steps["verdicts"][shard].files.get("verdicts")
    if files is None or judged is None:
        return None
    verdicts = pq.read_table(here(c.root, judged.path), columns=_JUDGED, partitioning=None)
    rows = pa.array(rows_of(verdicts.column("locator").to_numpy()))
    failures = failures_of(read_signals(c.root, files), rules_of(c.recipe, source_of(c.documents[shard])))
    failures = with_exclusions(c.root, failures, exclusion_files(c, shard)[1])
    failures = after_edits(c.root, edit_files(c, shard)[1], failures)
    now = column_array(failures, "failures").take(rows)
    failing, failed = _has_any(now), _has_any(column_array(verdicts, "failures"))
    alive = pc.not_equal(verdicts.column("state"), "dropped").to_numpy()
    kind = np.where(alive & failing, "dropped", np.where(failed & ~failing, "passing", ""))
    before = pc.coalesce(verdicts.column("reason"), verdicts.column("state"))
    tokens = _tokens(c.root, snapshot, shard, verdicts.column("locator").to_numpy())
    columns = [*verdicts.select(_CHANGED.names[:4]).columns, before, pa.array(kind.tolist(), pa.string()), now, tokens]
    return pa.table(columns, names=_CHANGED.names).filter(pa.array(kind != "")).cast(_CHANGED)


_JUDGED = ["doc_id", "source", "locator", "bytes", "state", "reason", "failures"]


def _has_any(lists: pa.ListArray) -> NDArray[np.bool_]:
    return np.asarray(lists.value_lengths().to_numpy(zero_copy_only=False) > 0, dtype=np.bool_)


def _tokens(root: Path, snapshot: Snapshot, shard: int, places: NDArray[np.uint64]) -> pa.Array:
    """Tokens of each document of a shard, null where it was not tokenised."""
    file = snapshot.steps["tokenize"][shard].files.get("lengths") if "tokenize" in snapshot.steps else None
    if file is None:
        return pa.nulls(len(places), pa.int64())
    lengths = pq.read_table(here(root, file.path), columns=["locator", "tokens"], partitioning=None)
    return column_array(lengths, "tokens").take(pc.index_in(pa.array(places), column_array(lengths, "locator")))


def _effects(changed: pa.Table, snapshot: Snapshot) -> list[Effect]:
    """Sums by source and kind, in that order."""
    made = []
    for source, kind in sorted(set(zip(changed.column("source").to_pylist(), changed.column("kind").to_pylist(), strict=True))):
        mine = changed.filter(pc.and_(pc.equal(changed.column("source"), source), pc.equal(changed.column("kind"), kind)))
        unknown = pc.sum(mine.filter(pc.is_null(mine.column("tokens"))).column("bytes")).as_py() or 0
        tokens = (pc.sum(mine.column("tokens")).as_py() or 0) + round(unknown * _tokens_per_byte(snapshot, source))
        made.append(Effect(source, kind, mine.num_rows, pc.sum(mine.column("bytes")).as_py(), tokens, unknown > 0))
    return made


def _tokens_per_byte(snapshot: Snapshot, source: str) -> float:
    """Of the source's tokenised documents; else of all; else a constant."""
    entries = snapshot.steps.get("tokenize", ())
    for chosen in ([entry for entry in entries if source_of(entry) == source], entries):
        size = sum(entry.counts["bytes"] for entry in chosen)
        if size:
            return sum(entry.counts["tokens"] + entry.counts["held_out_tokens"] for entry in chosen) / size
    return 1 / BYTES_PER_TOKEN


def _by_rule(changed: pa.Table) -> list[dict[str, Any]]:
    """Documents and bytes by source and rule: the first that would fail, or the reason that would no longer hold."""
    first = pc.list_element(changed.filter(pc.equal(changed.column("kind"), "dropped")).column("failures"), 0)
    dropped = changed.filter(pc.equal(changed.column("kind"), "dropped")).append_column("rule", pc.struct_field(first, "rule"))
    passing = changed.filter(pc.equal(changed.column("kind"), "passing"))
    both = pa.concat_tables([dropped, passing.append_column("rule", passing.column("before"))])
    counted = both.group_by(["kind", "source", "rule"]).aggregate([("bytes", "count"), ("bytes", "sum")])
    named = counted.rename_columns(["kind", "source", "rule", "documents", "bytes"])
    rows: list[dict[str, Any]] = named.sort_by([(name, "ascending") for name in ("kind", "source", "rule")]).to_pylist()
    return rows


def _sample(c: Curation, changed: pa.Table) -> list[Sampled]:
    """Up to ``SAMPLED`` documents in the order of a hash of doc_id and seed, those that would be dropped first."""
    hashes = id_hashes(column_array(changed, "doc_id"), c.recipe.seed)
    order = np.lexsort((hashes, changed.column("kind").to_numpy(zero_copy_only=False) != "dropped"))[:SAMPLED]
    chosen = changed.take(pa.array(order))
    texts = Corpus(c.root, c.paths("read", "documents")).fetch(chosen.column("locator").to_numpy()).to_pylist()
    rows = [
        {name: row[name] for name in ("source", "kind", "before", "bytes", "failures")} | {"doc_id": row["doc_id"].hex()}
        for row in chosen.to_pylist()
    ]
    return [Sampled(**row, excerpt=text[:EXCERPT]) for row, text in zip(rows, texts, strict=True)]
