"""Deduplication: exact hashes, sketches, LSH join, exact verification, keep policies, overlap with a reference set."""
