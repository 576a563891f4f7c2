"""A support bundle: the state of a host and its agent in one archive, without credentials."""

from __future__ import annotations

from dra_agent.doctor.bundle.archive import require_new, write_archive
from dra_agent.doctor.bundle.collector import Bundle, BundleManifest, Files
from dra_agent.doctor.bundle.content import Document, MissingPartError, RecordedHost, Text
from dra_agent.doctor.bundle.redaction import Redactor

__all__ = [
    "Bundle",
    "BundleManifest",
    "Document",
    "Files",
    "MissingPartError",
    "RecordedHost",
    "Redactor",
    "Text",
    "require_new",
    "write_archive",
]
