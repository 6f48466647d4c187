"""A report for people: what the transforms found, as one HTML page."""

from lakemq.pipeline.report.writing import write_report

__all__ = ["write_report"]
