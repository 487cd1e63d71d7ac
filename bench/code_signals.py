"""How well the code signals tell clean source from damaged copies: AUC of each and of the rule `code_damaged`, and their cost.

    python bench/code_signals.py [--files N]

Clean source is the standard library of the interpreter that runs this; each file of 2 to 60 KB is damaged in six ways by a seeded
generator. A value's AUC is the chance that it is higher in a damaged copy than in a clean file (0.5 tells nothing); the floor is for the
combination, over clean files and each kind of damage apart.
"""

from __future__ import annotations

import argparse
import keyword
import random
import re
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

FLOOR_AUC = 0.95
LINES = "(n_newlines + 1)"
VALUES = {
    "indent jumps": f"n_indent_jumps / {LINES}",
    "uneven indents": f"n_uneven_indents / {LINES}",
    "long lines": f"n_long_lines / {LINES}",
    "mean line": f"(n_chars - n_newlines) / {LINES}",
    "unbalanced brackets": "n_unbalanced_brackets",
    "tight operators": "n_operators_tight / (n_operators_spaced + n_operators_tight + 1)",
    "tight commas": "n_commas_tight / (n_commas_spaced + n_commas_tight + 1)",
    "short names": "n_short_names / (n_names + 1)",
    "no styled names": "1 - (n_snake_names + n_camel_names) / (n_names + 1)",
    "unopened lines": "n_unopened_lines / (n_code_lines + 1)",
    "unfilled blocks": "n_unfilled_blocks / (n_code_lines + 1)",
    "block faults": "(n_unopened_lines + n_unfilled_blocks) / (n_code_lines + 1)",
    "rough names": "n_rough_names / (n_ascii_names + 1)",
    "unfinished": "n_unfinished",
    "name length": "name_chars / (n_names + 1)",
}


def shuffled(text: str, source: random.Random) -> str:
    lines = text.split("\n")
    source.shuffle(lines)
    return "\n".join(lines)


def misindented(text: str, source: random.Random) -> str:
    return "\n".join(" " * source.randrange(9) + line.lstrip() if line[:1] == " " else line for line in text.split("\n"))


def renamed(text: str, source: random.Random) -> str:
    names: dict[str, str] = {}

    def other(match: re.Match[str]) -> str:
        name = match.group()
        if keyword.iskeyword(name):
            return name
        return names.setdefault(name, "".join(source.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=source.randrange(6, 14))))

    return re.sub(r"[A-Za-z_]\w*", other, text)


def minified(text: str, source: random.Random) -> str:
    lines = (re.sub(r"\s*([=+\-*/<>,:()\[\]{}])\s*", r"\1", line.strip()) for line in text.split("\n"))
    return ";".join(line for line in lines if line and not line.startswith("#"))


def truncated(text: str, source: random.Random) -> str:
    return text[: source.randrange(len(text) // 4, len(text))]


def merged(text: str, source: random.Random) -> str:
    return "".join(line + (" " if source.random() < 0.3 else "\n") for line in text.split("\n"))


DAMAGES: tuple[Callable[[str, random.Random], str], ...] = (shuffled, misindented, renamed, minified, truncated, merged)


def auc(clean: list[float], damaged: list[float]) -> float:
    import numpy as np

    values = np.concatenate([clean, damaged])
    order = np.unique(values, return_inverse=True)[1]
    counts = np.bincount(order)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[order]
    n, m = len(clean), len(damaged)
    return float((ranks[n:].sum() - m * (m + 1) / 2) / (n * m))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=400)
    options = parser.parse_args()
    import duckdb
    import pyarrow as pa

    from curate.families.code import code_signals
    from curate.families.structure import structure_signals
    from curate.rules import RULE_SETS
    from curate.signals import compute_signals

    source = random.Random(0)
    found = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    paths = [path for path in found if "site-packages" not in path.parts and 2000 <= path.stat().st_size <= 60000]
    texts = [path.read_text("utf-8", "ignore") for path in source.sample(paths, min(options.files, len(paths)))]
    _, rule = RULE_SETS["damaged_code"].rules
    expressions = ", ".join(f'CAST({sql} AS DOUBLE) AS "{value}"' for value, sql in {**VALUES, "combined": rule.value}.items())
    scores, dropped, spent = {}, {}, 0.0
    for name, copies in {"clean": texts, **{damage.__name__: [damage(text, source) for text in texts] for damage in DAMAGES}}.items():
        column = pa.array(copies, pa.large_string())
        parts = [compute_signals(column), code_signals(column)]
        structure_signals(column)
        start = time.process_time()
        parts.append(structure_signals(column))
        spent = spent or time.process_time() - start
        signals = pa.table({name: part.column(name) for part in parts for name in part.schema.names})  # noqa: F841
        scores[name] = duckdb.sql(f"SELECT {expressions} FROM signals").to_arrow_table().to_pydict()
        dropped[name] = sum(value > (rule.threshold or 0) for value in scores[name]["combined"]) / len(copies)
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts)} files, {size:.1f} MB; family structure {size / spent:.0f} MB/s (family code: bench/signal_families.py)")
    print(f"{'':22s}" + "".join(f"{damage.__name__:>13s}" for damage in DAMAGES))
    for value in [*VALUES, "combined"]:
        print(f"{value:22s}" + "".join(f"{auc(scores['clean'][value], scores[damage.__name__][value]):13.3f}" for damage in DAMAGES))
    print(f"{'dropped by the rule':22s}" + "".join(f"{dropped[damage.__name__]:13.3f}" for damage in DAMAGES))
    print(f"clean files dropped by the rule: {dropped['clean']:.3f}; AUC floor {FLOOR_AUC}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
