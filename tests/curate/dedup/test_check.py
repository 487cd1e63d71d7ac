"""The run-time check of sketches catches wrong ones."""

import numpy as np
import pyarrow as pa
import pytest

from curate.dedup import check
from curate.dedup.check import check_estimates
from curate.dedup.sketch import SketchSettings

WORDS = [f"w{i}" for i in range(300)]
LEFT = pa.array(["", "short", *(" ".join(WORDS[: 20 + 10 * i]) for i in range(20))], pa.large_string())
RIGHT = pa.array(["", "other", *(" ".join(WORDS[i : 30 + 10 * i]) for i in range(20))], pa.large_string())


@pytest.mark.parametrize("kind", ["fast_similarity", "minhash"])
def test_sound_sketches_pass_and_agree_with_datasketch(kind) -> None:
    result = check_estimates(LEFT, RIGHT, SketchSettings(kind=kind))
    assert result.passed and result.exact[:2].tolist() == [1, 0]
    assert np.abs(result.theirs - result.exact).max() < 0.3
    if kind == "minhash":
        assert np.array_equal(result.ours, result.theirs)


def test_broken_sketches_do_not_pass(monkeypatch) -> None:
    monkeypatch.setattr(check, "sketch_values", lambda texts, settings: np.zeros((len(texts), settings.k), np.uint64))
    assert not check_estimates(LEFT, RIGHT, SketchSettings()).passed
    with pytest.raises(RuntimeError, match="differs from datasketch"):
        check_estimates(LEFT, RIGHT, SketchSettings(kind="minhash"))
