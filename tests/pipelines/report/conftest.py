"""A lake whose texts attack the page that shows them, and a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.ablation import RESULTS
from schemas.store import publish_json
from tests.pipelines import fixture_lake
from tests.pipelines.fixture_lake import put_stage, write_lake

HOSTILE = [
    "the first </script><script>document.title = 'owned'</script> text",
    "a dull <img src=x onerror=\"document.title = 'owned'\"> text \"quoted\" 'twice' & more",
    "the first </script><script>document.title = 'owned'</script> text!",
    "a javascript:alert(1) <a href=\"javascript:document.title='owned'\">link</a> {{ 7 * 7 }} kept",
    "turned \u202e around \u2066 and \u200b hidden --> <!-- <svg onload=alert(1)>",
]


@pytest.fixture(scope="session")
def hostile_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``fixture_lake`` with ``HOSTILE`` texts, and a run with curves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixture_lake, "TEXTS", HOSTILE)
        root = write_lake(tmp_path_factory.mktemp("hostile") / "lake")
    names = ("loss", "loss/web", "heldout/web", "lr", "tokens_per_second", "grad_norm")
    rows = [{"attempt": 1, "step": step, "name": name, "value": 4.0 - step} for name in names for step in (1, 2)]
    put_stage(root, "runs/demo/0-first", metrics=rows)
    publish_json(root, RESULTS, ablation())
    return root


def ablation() -> dict[str, Any]:
    """What an ablation of two recipes might find on two held-out sets."""
    names = ("raw<script>", "good")
    bits = [(recipe, seed, held, 2.0 + 0.1 * seed - 0.3 * (recipe == "good")) for recipe in names for seed in range(3) for held in names]
    columns = ("recipe", "seed", "dataset", "bits_per_byte")
    runs = [dict(zip(columns, row, strict=True)) | {"run": "r", "loss": 1.0} for row in bits]
    difference = {"first": 2.1, "second": 1.8, "mean": -0.3, "low": -0.4, "high": -0.2, "words": "good is better"}
    differences = [{"dataset": held, **difference} for held in names]
    return {"recipes": list(names), "parameters": 1000, "tokens": 5000, "seeds": 3, "runs": runs, "differences": differences}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium of the system."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=600_000)
        yield made
        made.close()
