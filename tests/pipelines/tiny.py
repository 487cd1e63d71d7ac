"""A recipe over two made JSONL sources that runs from end to end in seconds; its steps are slow enough to be interrupted between."""

from __future__ import annotations

import json
import random
from pathlib import Path

RECIPE = """
name: tiny
sources:
  web: {reader: jsonl, paths: [web.jsonl], id_field: id}
  books: {reader: jsonl, paths: [books.jsonl], id_field: id, clean: true}
rules:
  - {sql: "n_words < 10", name: too_short}
tokenizer: {kind: byte}
pack: {row_length: 64}
holdout: {share: 0.05, max_documents: 10}
model: {layers: 4, width: 256, heads: 4}
training:
  {precision: fp32, batch_rows: 8, micro_batch_rows: 8, eval_every: 5, eval_rows: 8, checkpoint_every: 5, log_every: 1, threads: 1,
   schedule: {warmup_steps: 5}}
stages:
  - {name: first, tokens: 15000, mixture: {web: 1}, training: {early_stop: {min_delta: 5.0, patience: 3}}}
  - {name: second, tokens: 10000, mixture: {web: 1, books: 2}}
"""


def write_project(folder: Path) -> Path:
    """Write the sources and the recipe; every tenth document has a near-duplicate, one is too short, one line is broken."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    words = ["".join(draw.choice("abcdefghijklmnopqrstuvw") for _ in range(draw.randint(2, 8))) for _ in range(300)]
    for name, count in (("web", 120), ("books", 60)):
        texts = [" ".join(draw.choices(words, k=draw.randint(60, 120))) for _ in range(count)]
        texts += [f"{text} again" for text in texts[: count // 10]] + ["too short"]
        lines = [json.dumps({"id": f"{name}-{number}", "text": text}) for number, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("\n".join([*lines, "{broken"]) + "\n")
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder / "recipe.yaml"
