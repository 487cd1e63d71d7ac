"""SQL that every catalogue carries: table macros for the usual questions, and summaries small enough to be stored."""

from __future__ import annotations

MACROS = (
    # What became of the records of each source: one line for each outcome and reason.
    """
    CREATE MACRO funnel() AS TABLE
    WITH outcomes AS (
        SELECT source, 'quarantined' AS outcome, reason, count(*) AS documents, sum(bytes)::BIGINT AS bytes FROM quarantine GROUP BY ALL
        UNION ALL
        SELECT source, state, reason, count(*), sum(bytes)::BIGINT FROM verdicts GROUP BY ALL
    )
    SELECT *, documents / sum(documents) OVER (PARTITION BY source) AS share FROM outcomes
    ORDER BY source, outcome, documents DESC, reason
    """,
    # How often each run used each source: epochs over its rows, and the most uses of any one row. Void steps do not count.
    """
    CREATE MACRO epochs_by_source() AS TABLE
    WITH uses AS (
        SELECT run, source, lot, "row", count(*) AS uses FROM ledger WHERE status = 'seen' GROUP BY ALL
    ), totals AS (
        SELECT source, sum(rows)::BIGINT AS rows, max(repeats) AS allowed FROM lots WHERE split = 'train' GROUP BY ALL
    )
    SELECT run, source, sum(uses)::BIGINT AS rows_seen, count(*) AS rows_touched, any_value(totals.rows) AS rows,
        sum(uses) / any_value(totals.rows) AS epochs, max(uses) AS most_uses, any_value(totals.allowed) AS allowed
    FROM uses JOIN totals USING (source) GROUP BY run, source ORDER BY run, source
    """,
    """
    CREATE MACRO duplicates_of(doc) AS TABLE
    SELECT doc_id, source, kind, kept_doc_id, similarity FROM clusters
    WHERE starts_with(kept_doc_id, lower(doc)) OR kept_doc_id IN (SELECT kept_doc_id FROM clusters WHERE starts_with(doc_id, lower(doc)))
    ORDER BY kept_doc_id, similarity DESC, doc_id
    """,
    # Training loss of a stage by source and step, in nats per token.
    """
    CREATE MACRO loss_by_source(stage_name) AS TABLE
    SELECT losses.run, lots.source, losses.step, sum(losses.loss) / sum(losses.tokens) AS loss, sum(losses.tokens)::BIGINT AS tokens
    FROM losses JOIN lots USING (lot) WHERE losses.stage = stage_name AND losses.status = 'seen'
    GROUP BY ALL ORDER BY run, source, step
    """,
    # The documents that a step saw, hardest first.
    """
    CREATE MACRO documents_at(at_step) AS TABLE
    SELECT losses.run, losses.stage, losses.step, losses.status, losses.doc_id, lots.source, losses.lot, losses."row",
        sum(losses.tokens)::BIGINT AS tokens, sum(losses.loss) / sum(losses.tokens) AS loss
    FROM losses JOIN lots USING (lot) WHERE losses.step = at_step
    GROUP BY ALL ORDER BY run, status, loss DESC, doc_id
    """,
)

SUMMARIES = (
    # Kept as tables: small, and asked for by every page and summary.
    """
    CREATE TABLE summary_funnel AS SELECT * FROM funnel()
    """,
    """
    CREATE TABLE summary_sources AS
    WITH duplicates AS (
        SELECT source, count(*) AS duplicates FROM verdicts
        WHERE reason IN ('url_duplicate', 'exact_duplicate', 'near_duplicate') GROUP BY ALL
    ),
    kept AS (SELECT source, sum(bytes)::BIGINT AS bytes_kept FROM verdicts WHERE state = 'kept' GROUP BY ALL),
    packed AS (
        SELECT source, sum(rows)::BIGINT AS rows, sum(tokens)::BIGINT AS tokens, sum(discarded)::BIGINT AS discarded
        FROM lots WHERE split = 'train' GROUP BY ALL
    )
    SELECT source, records_in, quarantined, dropped, coalesce(duplicates, 0) AS duplicates, held_out, kept, bytes_in,
        coalesce(bytes_kept, 0) AS bytes_kept, coalesce(rows, 0) AS rows, coalesce(tokens, 0) AS tokens, coalesce(discarded, 0) AS discarded
    FROM conservation LEFT JOIN duplicates USING (source) LEFT JOIN kept USING (source) LEFT JOIN packed USING (source) ORDER BY source
    """,
)
