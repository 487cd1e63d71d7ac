"""The Arrow schema of every table of a lake; each column says in its metadata what it holds."""

from __future__ import annotations

import pyarrow as pa

from schemas.families import FAMILIES
from schemas.signals import SIGNALS

DOC_ID = pa.binary(16)
"""A document's identity: BLAKE2b-128 of source and user id, or of source, path and physical record number."""

CHANGE = pa.struct([("kind", pa.string()), ("count", pa.int64()), ("removed", pa.int64()), ("added", pa.int64())])

FAILURE = pa.struct([("rule", pa.string()), ("value", pa.float64()), ("threshold", pa.float64())])


def column(name: str, kind: pa.DataType, doc: str, nullable: bool = False) -> pa.Field:
    """A documented column."""
    return pa.field(name, kind, nullable=nullable, metadata={"doc": doc})


def doc_id(doc: str = "the document", nullable: bool = False) -> pa.Field:
    """The ``doc_id`` column."""
    return column("doc_id", DOC_ID, doc, nullable)


DOCUMENTS = pa.schema(
    [
        doc_id("hash of source and the user's id where declared, else of source, path under the source's root and record number"),
        column("source", pa.string(), "source name of the recipe"),
        column("id", pa.string(), "the user's own id, as it came", True),
        column("path", pa.string(), "file under the source's root"),
        column("record", pa.int64(), "physical record number in the file, from 0, bad records counted"),
        column("text", pa.large_string(), "the text, UTF-8"),
        column("bytes", pa.int64(), "length of the text in UTF-8 bytes"),
        column("text_version", pa.int32(), "0 as read; one more for each step that rewrote it"),
        column("url", pa.string(), "where it came from, if known", True),
        column("date", pa.string(), "its date as it came, if known", True),
        column("license", pa.string(), "its licence, if known", True),
        column("meta", pa.string(), "all other fields of the record, as JSON", True),
    ]
)

QUARANTINE = pa.schema(
    [
        column("source", pa.string(), "source name of the recipe"),
        column("path", pa.string(), "file under the source's root"),
        column("record", pa.int64(), "physical record number from 0; null when the fault is the file's", True),
        column(
            "reason",
            pa.string(),
            "stable code: invalid_utf8, broken_json, no_text, null_text, text_not_string, truncated_file, too_large, duplicate_id, ...",
        ),
        column("detail", pa.string(), "what was found"),
        column("bytes", pa.int64(), "raw bytes of the record set aside"),
        doc_id("the document whose id is repeated, for duplicate_id", True),
    ]
)

REPEATS = pa.schema(
    [
        doc_id("a declared id that an earlier record of the source has"),
        column("locator", pa.uint64(), "place of the repeat: documents shard << 32 | row"),
        column("bytes", pa.int64(), "length of its text in UTF-8 bytes"),
    ]
)

EDITS = pa.schema(
    [
        doc_id(),
        column("source", pa.string(), "its source"),
        column("locator", pa.uint64(), "its place: documents shard << 32 | row"),
        column("step", pa.int32(), "place of the edit in the recipe, from 0"),
        column("edit", pa.string(), "c4, lines, paragraphs, substrings, ..."),
        column("text_version", pa.int32(), "version of the text that it made"),
        column("changes", pa.list_(CHANGE), "what it did by kind: how often, bytes removed, bytes added"),
        column("removed", pa.int64(), "bytes removed, counted where it was done"),
        column("added", pa.int64(), "bytes added, the same"),
        column("bytes_before", pa.int64(), "length of the text before, in UTF-8 bytes"),
        column("bytes_after", pa.int64(), "and after"),
        column("hash_before", DOC_ID, "128-bit hash of the text before"),
        column("hash_after", DOC_ID, "and after"),
    ]
)

SIGNALS_TABLE = pa.schema([doc_id(), *SIGNALS])

EARLY_SIGNALS = pa.schema(
    [doc_id(), *SIGNALS, column("step", pa.int32(), "place in the recipe of the edit before which they were counted")]
)

SCORES = pa.schema(
    [
        doc_id(),
        column("signal", pa.string(), "name of a signal of the recipe's own"),
        column("value", pa.float64(), "its value; null when the document has none", True),
    ]
)

DOCUMENT_LOSSES = pa.schema(
    [
        doc_id(),
        column("tokens", pa.int64(), "predicted tokens of the document in packed rows"),
        column("loss", pa.float64(), "mean cross-entropy over them under the model, nats per token; null where none is predicted", True),
    ]
)
"""The file that `gristmill score` writes; not a table of the lake."""

LANGUAGES = pa.schema(
    [
        doc_id(),
        column("language", pa.string(), "likeliest language of the text's first 2 KiB, ISO 639; null where nothing says any", True),
        column("language_score", pa.float64(), "its probability among the model's languages, 6 decimals; 0 without a language"),
    ]
)

FAILURES = pa.schema([doc_id(), column("failures", pa.list_(FAILURE), "every failing rule, in declared order; empty when it passes")])

EXCLUSIONS = pa.schema(
    [
        doc_id(),
        column("source", pa.string(), "its source"),
        column("locator", pa.uint64(), "its place: documents shard << 32 | row"),
        column("reason", pa.string(), "contaminated_<set>, license_not_allowed, opted_out, forgotten or url_blocked"),
        column("detail", pa.string(), "the evaluation item, licence, domain or list entry that it is for"),
        column("matches", pa.int64(), "places of the document that match evaluation items; null for the other reasons", True),
    ]
)

FORGOTTEN = pa.schema([doc_id("a document that the lake must not hold")])

CLUSTERS = pa.schema(
    [
        doc_id("the duplicate"),
        column("source", pa.string(), "its source"),
        column("locator", pa.uint64(), "its place: documents shard << 32 | row"),
        column("kind", pa.string(), "url, exact or near"),
        column("kept_doc_id", DOC_ID, "the kept document it duplicates"),
        column("similarity", pa.float64(), "exact Jaccard over word shingles; 1 for an exact duplicate; null for one by url", True),
    ]
)

ALARMS = pa.schema(
    [
        column("source", pa.string(), "source name"),
        column("kind", pa.string(), "oversized_cluster or drop_rate"),
        column("share", pa.float64(), "share of the source's documents that pass the rules"),
        column("limit", pa.float64(), "the recipe's limit"),
        column("duplicates", pa.int64(), "duplicates in the cluster, or in the source"),
        column("documents", pa.int64(), "documents of the source that pass the rules, of this generation"),
        column("kept_doc_id", DOC_ID, "the document that the cluster keeps; null for a drop rate", True),
        column("generation", pa.int32(), "generation of new data, from 0"),
    ]
)

ESTIMATES = pa.schema(
    [
        doc_id("a near-duplicate drawn for dedup.check"),
        column("kept_doc_id", DOC_ID, "the kept document that it was compared with"),
        column("exact", pa.float64(), "exact Jaccard over word shingles"),
        column("estimate", pa.float64(), "estimate of the run's sketch"),
        column("datasketch", pa.float64(), "estimate of datasketch's MinHash of as many permutations"),
    ]
)

HOLDOUT = pa.schema(
    [
        doc_id(),
        column("source", pa.string(), "its source"),
        column("locator", pa.uint64(), "its place: documents shard << 32 | row"),
        column("state", pa.string(), "held_out, or near_holdout: too similar to a held-out document to be trained on"),
        column("reference", DOC_ID, "the held-out document that it is similar to; itself when it was drawn"),
        column("similarity", pa.float64(), "their exact Jaccard; 1 when it was drawn"),
    ]
)

ABLATIONS = pa.schema(
    [
        column("recipe", pa.string(), "the recipe that the model was trained by"),
        column("seed", pa.int64(), "number of the pair, from 0"),
        column("run", pa.string(), "the training run"),
        column("dataset", pa.string(), "the recipe whose held-out documents it was measured on"),
        column("bits_per_byte", pa.float64(), "held-out bits per byte of text"),
        column("loss", pa.float64(), "held-out loss, nats per token"),
    ]
)

VERDICTS = pa.schema(
    [
        doc_id(),
        column("source", pa.string(), "its source"),
        column("locator", pa.uint64(), "its place: documents shard << 32 | row"),
        column("state", pa.string(), "kept, dropped or held_out"),
        column(
            "reason",
            pa.string(),
            "first failing rule in declared order, url_duplicate, exact_duplicate, near_duplicate or near_holdout; null when not dropped",
            True,
        ),
        column("failures", pa.list_(FAILURE), "every failing rule with value and threshold"),
        column("kept_doc_id", DOC_ID, "for a duplicate: the kept (or held-out) document verified similar to it", True),
        column("similarity", pa.float64(), "their exact Jaccard", True),
        column("bytes", pa.int64(), "length of the text in UTF-8 bytes"),
        column("text_version", pa.int32(), "the text version judged"),
    ]
)

TOKENS = pa.schema(
    [
        doc_id(),
        column("locator", pa.uint64(), "its place: documents shard << 32 | row"),
        column("tokens", pa.large_list(pa.uint32()), "token ids without BOS and EOS"),
    ]
)

LOTS = pa.schema(
    [
        column("lot", pa.string(), "lot id: source, split, repeat class, difficulty bin, row length, fingerprint"),
        column("source", pa.string(), "source name"),
        column("split", pa.string(), "train or holdout"),
        column("repeats", pa.int32(), "how often each of its documents may be used over the whole run; 0 when held out"),
        column("bin", pa.int32(), "difficulty bin, 0 the easiest; 0 when the source declares no difficulty"),
        column("row_length", pa.int32(), "tokens in a row"),
        column("rows", pa.int64(), "rows"),
        column("tokens", pa.int64(), "tokens in rows, BOS and EOS included, padding not"),
        column("padding", pa.int64(), "positions left empty"),
        column("discarded", pa.int64(), "tokens of document tails not packed"),
        column("documents", pa.int64(), "documents"),
        column("pieces", pa.int64(), "document pieces in rows; the first token of each has nothing before it, so it is not predicted"),
        column("bytes", pa.int64(), "UTF-8 bytes of its documents' text"),
        column("generation", pa.int32(), "the generation of new data that its documents came with, from 0; its lots never change"),
    ]
)

ROWS = pa.schema(
    [
        column("lot", pa.string(), "lot id"),
        column("row", pa.int64(), "row number in the lot"),
        doc_id("document a piece of which lies in the row"),
        column("start", pa.int32(), "first position of the piece in the row"),
        column("tokens", pa.int32(), "length of the piece, BOS and EOS included"),
        column("offset", pa.int64(), "first token of the piece within its document, BOS and EOS included"),
    ]
)

PLANS = pa.schema(
    [
        column("run", pa.string(), "run name"),
        column("stage", pa.string(), "stage name"),
        column("position", pa.int32(), "place of the stage in the curriculum, from 0"),
        column("segment", pa.int32(), "index of the segment in the run's order"),
        column("source", pa.string(), "source name"),
        column("replayed", pa.bool_(), "the allotment gives documents of earlier stages once more"),
        column("lot", pa.string(), "lot id"),
        column("start", pa.int64(), "first use of the allotment; use u of a lot of R rows is row order u % R of epoch u // R"),
        column("stop", pa.int64(), "end of the allotment, exclusive"),
        column("rows", pa.int64(), "rows of the allotment"),
        column("returned", pa.bool_(), "the allotment was returned by an earlier stage that stopped early"),
    ]
)

CHOICES = pa.schema(
    [
        column("question", pa.int32(), "number of the question in its set, from 0"),
        column("tokens", pa.list_(pa.field("item", pa.uint32(), nullable=False)), "BOS, context and one option"),
        column("scored", pa.int32(), "how many of the last tokens are the option's"),
        column("bytes", pa.int32(), "UTF-8 bytes of the option"),
        column("right", pa.bool_(), "whether it is the answer"),
    ]
)
"""Options of a multiple-choice set, an Arrow file of its own; not a table of the lake."""

LEDGER = pa.schema(
    [
        column(
            "attempt",
            pa.int32(),
            "process attempt that ran the step, from 0; a later attempt that starts at or before the step makes it void",
        ),
        column("step", pa.int64(), "optimizer step over the whole run, from 0"),
        column("index", pa.int64(), "position in the run's order"),
        column("source", pa.string(), "source name"),
        column("lot", pa.string(), "lot id"),
        column("row", pa.int64(), "row number in the lot"),
        column("use", pa.int64(), "which use of the lot: epoch * rows + place in the epoch's order"),
    ]
)

LOSSES = pa.schema(
    [
        column("attempt", pa.int32(), "process attempt, as in the ledger"),
        column("step", pa.int64(), "optimizer step over the whole run"),
        column("lot", pa.string(), "lot id"),
        column("row", pa.int64(), "row number in the lot"),
        doc_id("document of the piece"),
        column("tokens", pa.int32(), "predicted tokens of the piece"),
        column("loss", pa.float64(), "sum of cross-entropy over them, nats"),
    ]
)

METRICS = pa.schema(
    [
        column("attempt", pa.int32(), "process attempt, as in the ledger"),
        column("step", pa.int64(), "optimizer step over the whole run"),
        column(
            "name",
            pa.string(),
            "loss, loss/<source>, heldout, bits_per_byte/<source>, lr, grad_norm, update_rms, tokens_per_second, mfu, memory_bytes, ...",
        ),
        column("value", pa.float64(), "its value"),
    ]
)

EVENTS = pa.schema(
    [
        column("attempt", pa.int32(), "process attempt"),
        column("step", pa.int64(), "optimizer step over the whole run at which it happened"),
        column("kind", pa.string(), "started, resumed, rewound, checkpoint, early_stop, interrupted, finished, ..."),
        column("detail", pa.string(), "what happened, as JSON"),
    ]
)

CONSERVATION = pa.schema(
    [
        column("source", pa.string(), "source name"),
        column("records_in", pa.int64(), "records counted by the reader"),
        column("sampled_out", pa.int64(), "records that --sample left out, counted by the sample step"),
        column("quarantined", pa.int64(), "counted by SQL over quarantine (record faults)"),
        column("dropped", pa.int64(), "counted by SQL over verdicts"),
        column("held_out", pa.int64(), "counted by SQL over verdicts"),
        column("kept", pa.int64(), "counted by SQL over verdicts"),
        column("bytes_in", pa.int64(), "text bytes counted by the reader"),
        column("bytes_edited", pa.int64(), "bytes removed less bytes added, summed by SQL over edits"),
        column("bytes_out", pa.int64(), "text bytes summed by SQL over verdicts and duplicate ids"),
    ]
)

TABLES: dict[str, pa.Schema] = {
    "documents": DOCUMENTS,
    "quarantine": QUARANTINE,
    "repeats": REPEATS,
    "edits": EDITS,
    "signals": SIGNALS_TABLE,
    "early_signals": EARLY_SIGNALS,
    "scores": SCORES,
    "exclusions": EXCLUSIONS,
    "forgotten": FORGOTTEN,
    "languages": LANGUAGES,
    **{family: pa.schema([doc_id(), *columns]) for family, columns in FAMILIES.items()},
    "failures": FAILURES,
    "clusters": CLUSTERS,
    "alarms": ALARMS,
    "estimates": ESTIMATES,
    "holdout": HOLDOUT,
    "verdicts": VERDICTS,
    "tokens": TOKENS,
    "lots": LOTS,
    "rows": ROWS,
    "plans": PLANS,
    "ledger": LEDGER,
    "losses": LOSSES,
    "metrics": METRICS,
    "events": EVENTS,
    "ablations": ABLATIONS,
    "conservation": CONSERVATION,
}
"""Every table by name."""


def row_schema(row_length: int, vocabulary: int, metadata: dict[str, str]) -> pa.Schema:
    """Schema of a lot's Arrow shards, one line a packed row.

    Columns: ``tokens`` fixed-size list of ``row_length`` uint16 (uint32 above 65,536 words), the tail past the last end being padding;
    ``ends`` end position of each document piece, ascending; ``doc_ids`` the document of each piece. ``metadata`` holds at least
    ``lot``, ``source``, ``tokenizer`` (fingerprint) and ``row_length``.
    """
    token = pa.uint16() if vocabulary <= 1 << 16 else pa.uint32()
    return pa.schema(
        [
            column(
                "tokens",
                pa.list_(pa.field("item", token, nullable=False), row_length),
                "token ids; positions past the last end are padding",
            ),
            column("ends", pa.list_(pa.field("item", pa.int32(), nullable=False)), "end of each document piece in the row, ascending"),
            column("doc_ids", pa.list_(pa.field("item", DOC_ID, nullable=False)), "document of each piece"),
        ],
        metadata=metadata,
    )
