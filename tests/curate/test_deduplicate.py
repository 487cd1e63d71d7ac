"""What is a duplicate of what does not depend on how the arrays of the choice lie in memory."""

import pytest

from curate import deduplicate
from curate.dedup import scratch
from tests.curate.made_text import corpus, write_jsonl
from tests.curate.published import rows, run

RECIPE = """\
name: made
sources: {web: {reader: jsonl, paths: [web]}, books: {reader: jsonl, paths: [books]}}
dedup: {urls: true, prefer: [n_words]}
rules: [{name: tiny, sql: n_words < 3}]
holdout: {share: 0}
shards: {bytes: 20000}
"""


@pytest.fixture(scope="module")
def recipe_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    texts = corpus(31, 120)
    urls = [f"http://www.x.org/{number % 30}?utm_source=a" if number % 3 == 0 else None for number in range(80)]
    write_jsonl(folder / "web/a.jsonl", [*texts[:78], "", "a b"], url=urls)
    write_jsonl(folder / "books/a.jsonl", texts[70:])
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder / "recipe.yaml"


def test_mapped_arrays_small_parts_and_small_chunks_change_no_byte(recipe_path, tmp_path, monkeypatch):
    snapshot = run(tmp_path / "plain", recipe_path)
    monkeypatch.setattr(scratch, "DOCUMENT_BYTES", 1 << 40)
    monkeypatch.setattr(scratch, "_EQUAL_COST", 1 << 24)
    monkeypatch.setattr(scratch, "CHUNK", 7)
    small = run(tmp_path / "small", recipe_path, workers=2)
    checksums = [[file.checksum for file in each.files("clusters")] for each in (snapshot, small)]
    assert checksums[0] == checksums[1] and checksums[0]
    kinds = [row["kind"] for row in rows(tmp_path / "small", "clusters")]
    assert set(kinds) == {"url", "exact", "near"}


def test_no_duplicates_publish_no_file_and_one_document_is_enough(tmp_path):
    write_jsonl(tmp_path / "web/a.jsonl", ["one text of some words"])
    write_jsonl(tmp_path / "books/a.jsonl", ["quite another text is here"])
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert run(tmp_path / "lake", tmp_path / "recipe.yaml").files("clusters") == []


@pytest.mark.parametrize("workers", [1, 2])
def test_the_choice_has_as_many_threads_as_the_run_has_workers(recipe_path, tmp_path, monkeypatch, workers):
    threads, find = [], deduplicate.find_near_duplicates

    def watched(*arguments, **options):
        threads.append(options["threads"])
        return find(*arguments, **options)

    monkeypatch.setattr(deduplicate, "find_near_duplicates", watched)
    run(tmp_path / "lake", recipe_path, workers)
    assert threads == [workers]
