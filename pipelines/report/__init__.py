"""The report: what a lake holds and how its training went, as one HTML file or served live."""

from pipelines.report.page import write_report

__all__ = ["write_report"]
