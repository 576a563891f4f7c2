"""Checks that find problems of a host and report how to fix them. They change nothing."""

from __future__ import annotations

from dra_agent.doctor.context import (
    CheckContext,
    CommandResult,
    CommandRunner,
    EndpointFiles,
    LedgerSummary,
    OtherAgent,
)
from dra_agent.doctor.finding import Finding, Severity
from dra_agent.doctor.runner import CHECKS, is_healthy, run_checks

__all__ = [
    "CHECKS",
    "CommandRunner",
    "CheckContext",
    "Finding",
    "LedgerSummary",
    "OtherAgent",
    "CommandResult",
    "EndpointFiles",
    "Severity",
    "run_checks",
    "is_healthy",
]
