"""A run's sketches against datasketch and exact similarities, on sampled pairs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.dedup.shingles import shingle_sets
from curate.dedup.sketch import SketchSettings, sketch_values, to_datasketch
from curate.dedup.verify import common

_DEVIATIONS = 6.0


@dataclass(frozen=True)
class EstimateCheck:
    """Similarities of the sampled pairs, shape (pairs,) each."""

    exact: npt.NDArray[np.float64]
    """Jaccard similarity of the shingle sets."""
    ours: npt.NDArray[np.float64]
    """Estimate of this package's sketch, computed by datasketch from its entries."""
    theirs: npt.NDArray[np.float64]
    """Estimate of the sketch that datasketch makes itself from the same shingle hashes."""
    k: int
    """Entries of the sketches."""

    @property
    def worst(self) -> float:
        """Largest distance of our estimate from the exact similarity, in standard deviations of MinHash."""
        return float(self.deviations(self.ours).max(initial=0.0))

    def deviations(self, estimate: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Distances from the exact similarity over sqrt(J (1 - J) / K), with half an entry's width as least unit."""
        unit = np.sqrt(self.exact * (1 - self.exact) / self.k) + 0.5 / self.k
        return np.asarray(np.abs(estimate - self.exact) / unit)

    @property
    def passed(self) -> bool:
        """Whether every estimate lies within six standard deviations."""
        return self.worst <= _DEVIATIONS


def check_estimates(left: pa.LargeStringArray, right: pa.LargeStringArray, settings: SketchSettings) -> EstimateCheck:
    """Compares pairs of texts in three ways.

    Args:
        left: First texts of the sampled pairs.
        right: Second texts, as many.
        settings: The run's sketch.

    Returns:
        Exact similarities and both estimates.

    Raises:
        RuntimeError: When a minhash sketch differs from datasketch's in any entry.
    """
    from datasketch import MinHash

    sets, ours, theirs = [], [], []
    for texts in (left, right):
        hashes, offsets = shingle_sets(texts, settings.shingle)
        sets.append([hashes[a:b] for a, b in itertools.pairwise(offsets)])
        ours.append(to_datasketch(sketch_values(texts, settings), settings))
        own = []
        for one in sets[-1]:
            sketch = MinHash(num_perm=settings.k, seed=settings.seed, hashfunc=int)
            sketch.update_batch([int(h) & 0xFFFFFFFF for h in one])
            own.append(sketch)
        theirs.append(own)
    if settings.kind == "minhash":
        for a, b in zip([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], strict=True):
            if not np.array_equal(a.hashvalues, b.hashvalues):
                raise RuntimeError("a minhash sketch differs from datasketch's of the same shingles: do not trust this run's signatures")
    exact = [(shared := int(common(a, b))) / (len(a) + len(b) - shared) for a, b in zip(*sets, strict=True)]
    estimates = [np.array([a.jaccard(b) for a, b in zip(*side, strict=True)], np.float64) for side in (ours, theirs)]
    return EstimateCheck(np.array(exact, np.float64), estimates[0], estimates[1], settings.k)
