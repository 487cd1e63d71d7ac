"""Documents of one address: one stays, and each that goes names a kept one."""

import pyarrow.parquet as pq

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.step import Silent
from schemas.manifest import read_snapshot
from schemas.recipe import Recipe
from tests.curate.made_text import corpus, write_jsonl


def test_of_documents_with_one_address_the_preferred_stays(tmp_path):
    texts = [text + f" number{number}" * number for number, text in enumerate(corpus(9, 12))]
    texts[7], texts[11] = texts[8], "far too short"
    urls = [f"https://a.example/{number}" for number in range(12)]
    urls[1], urls[2] = "http://www.a.example/0?utm_source=x", "https://A.example/0/#top"
    urls[5], urls[6] = None, None
    urls[10], urls[11] = "https://a.example/page", "https://a.example/page"
    write_jsonl(tmp_path / "made/a.jsonl", texts, url=urls)
    source = {"reader": "jsonl", "paths": [str(tmp_path / "made")]}
    rules = [{"name": "short", "sql": "n_words < 5"}]
    dedup = {"urls": True, "near": None, "prefer": ["bytes"]}
    recipe = Recipe.model_validate({"name": "urls", "sources": {"made": source}, "rules": rules, "dedup": dedup, "holdout": {"share": 0}})
    root = tmp_path / "lake"
    curate(Curation(root, recipe, LocalExecutor(1), Silent()))
    verdicts = [
        row for file in read_snapshot(root).files("verdicts") for row in pq.read_table(root / file.path, partitioning=None).to_pylist()
    ]
    longest = max((0, 1, 2), key=lambda row: len(texts[row]))
    gone = {row: verdict for row, verdict in enumerate(verdicts) if verdict["reason"] == "url_duplicate"}
    assert set(gone) == {0, 1, 2} - {longest}
    assert all(v["kept_doc_id"] == verdicts[longest]["doc_id"] and v["similarity"] is None for v in gone.values())
    assert [verdicts[row]["state"] for row in (5, 6, 10)] == ["kept"] * 3  # no address is nobody's twin, nor is a dropped document
    assert sorted(verdicts[row]["reason"] or "" for row in (7, 8)) == ["", "exact_duplicate"]
