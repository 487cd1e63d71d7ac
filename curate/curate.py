"""The main path of curation, top to bottom: read, edit, filter, deduplicate, hold out, judge, publish."""

from __future__ import annotations

from curate.curation import Curation
from curate.deduplicate import check_preference, deduplicate_step, sign_step
from curate.edit.steps import edit_documents
from curate.exclude import exclusion_steps
from curate.filter import check_rules, rules_step, signals_step
from curate.holdout import hold_out
from curate.identity import repeats_step, sample_step
from curate.layout import check_expressions
from curate.read import READ_VERSION, list_shards, read_shard
from curate.scores import check_signals, score_steps
from curate.step import Step
from curate.verdicts import check_sources, conservation_step, verdicts_step
from schemas.manifest import Snapshot, fingerprint, write_snapshot


def curate(c: Curation) -> Snapshot:
    """Curate everything; what the lake already holds is not done again.

    Raises:
        GristmillError: unusable input, a rule that cannot run, or records that do not add up.
    """
    read(c)
    filter_documents(c)
    deduplicate(c)
    return publish(c)


def read(c: Curation) -> None:
    """Sources to documents and quarantine; records with a repeated id are set aside, texts changed as the recipe's edits say.

    Raises:
        RecipeError: an SQL expression of the recipe is not one allowed expression; found before anything is read.
        InputError: a source has no input, no records, or too many bad ones.
    """
    check_signals(c.recipe)
    check_rules(c.recipe)
    check_preference(c.recipe.dedup, c.recipe.signals)
    check_expressions(c.recipe)
    shards = [shard for name, source in c.recipe.sources.items() for shard in list_shards(name, source, c.recipe.shards.bytes)]
    c.keep(Step("read", READ_VERSION, {}, read_shard, processes=True), shards)
    check_sources(c)
    if c.sample < 1:
        c.steps["read"] = c.run(*sample_step(c))
    c.keep(*repeats_step(c))
    edit_documents(c)


def measure(c: Curation) -> None:
    """Signals of every document, those counted in its text and the user's own, and what is excluded whatever its text is like."""
    c.keep(*signals_step(c))
    for step, shards in (*score_steps(c), *exclusion_steps(c)):
        c.keep(step, shards)


def filter_documents(c: Curation) -> None:
    """What is measured of every document, and the rules that each fails."""
    measure(c)
    c.keep(*rules_step(c))


def deduplicate(c: Curation) -> None:
    """Exact and near duplicates among the documents that pass the rules."""
    c.keep(*sign_step(c))
    c.keep(*deduplicate_step(c))


def publish(c: Curation) -> Snapshot:
    """Hold documents out, judge all, check that nothing was lost, and name the result the current snapshot."""
    hold_out(c)
    c.keep(*verdicts_step(c))
    c.keep(*conservation_step(c))
    snapshot = Snapshot(fingerprint(c.recipe.model_dump(mode="json"), c.sample), c.steps)
    write_snapshot(c.root, snapshot)
    return snapshot
