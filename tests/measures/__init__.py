"""Counts what the structure of the repository is judged by: `make measures`, a report."""
