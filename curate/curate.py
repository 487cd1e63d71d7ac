"""The main path of curation, top to bottom: read, edit, filter, deduplicate, hold out, judge, publish."""

from __future__ import annotations

from pathlib import Path

from curate.alarms import alarms_step, refuse_alarms
from curate.blocklists import block_steps
from curate.curation import Curation
from curate.deduplicate import check_preference, deduplicate_step, sign_step
from curate.doc_index import index_step
from curate.edit.steps import edit_documents
from curate.estimates import estimates_steps
from curate.exclude import exclusion_steps
from curate.families.step import family_steps
from curate.filter import check_rules, rules_step, signals_step
from curate.generations import read_generations
from curate.holdout import hold_out
from curate.identity import repeats_step
from curate.languages.step import check_languages, languages_steps
from curate.layout import check_expressions
from curate.scores import check_signals, score_steps
from curate.tokenize import check_tokenizer
from curate.verdicts import check_sources, conservation_step, verdicts_step
from schemas.manifest import UNPACKED, Snapshot, fingerprint, read_snapshot, write_snapshot


def curate(c: Curation) -> Snapshot:
    """Curate everything; what the lake already holds is not done again, and its earlier generations are never judged anew.

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
        InputError: a tokenizer's file cannot be used, also found before; a source has no input, no records, or too many bad ones.
    """
    check_signals(c.recipe)
    check_rules(c.recipe)
    check_languages(c.recipe)
    check_preference(c.recipe.dedup, c.recipe.signals)
    check_expressions(c.recipe)
    if not c.rehearsal:
        check_tokenizer(c.recipe)
    read_generations(c)
    check_sources(c)
    if len(c.documents) == len(c.before("read")):  # nothing is new
        c.steps["repeats"] = c.before("repeats")
    else:
        c.keep(*repeats_step(c))
    edit_documents(c)


def measure(c: Curation) -> None:
    """Signals of every document (counted in its text; language and families where asked; the user's own), and what is excluded anyway."""
    c.extend(*signals_step(c))
    for step, shards in (*languages_steps(c), *family_steps(c), *score_steps(c), *block_steps(c), *exclusion_steps(c)):
        c.extend(step, shards)


def filter_documents(c: Curation) -> None:
    """What is measured of every document, and the rules that each fails."""
    measure(c)
    c.extend(*rules_step(c))


def deduplicate(c: Curation) -> None:
    """Exact and near duplicates among the documents that pass the rules."""
    c.extend(*sign_step(c))
    c.extend(*deduplicate_step(c))
    for step, shards in estimates_steps(c):
        c.extend(step, shards)


def publish(c: Curation) -> Snapshot:
    """Hold documents out, judge all, check that nothing was lost, and publish the result.

    It becomes the current snapshot once its lots are built (``build_lots``); until then the earlier one stays, so that plans find lots.
    A lake's first is current at once, to be looked into should nothing be kept.
    """
    hold_out(c)
    c.extend(*verdicts_step(c))
    c.keep(*conservation_step(c))
    c.extend(*index_step(c))
    c.extend(*alarms_step(c))
    refuse_alarms(c)
    carried = {} if c.earlier is None else {step: entries for step, entries in c.earlier.steps.items() if step not in c.steps}
    snapshot = Snapshot(fingerprint(c.recipe.model_dump(mode="json"), c.sample), {**c.steps, **carried})
    write_snapshot(c.root, snapshot, UNPACKED if _has_lots(c.root) else "current")
    return snapshot


def _has_lots(root: Path) -> bool:
    return (root / "snapshots/current.json").is_file() and "lots" in read_snapshot(root).steps
