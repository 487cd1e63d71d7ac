"""Signals of the user's own: numbers that local code or a local model gives each document, named in rules like any signal."""

from curate.scores.columns import content_of, read_signals, score_paths, signal_files, signal_schema
from curate.scores.steps import check_signals, score_steps

__all__ = ["check_signals", "content_of", "read_signals", "score_paths", "score_steps", "signal_files", "signal_schema"]
