"""What is wrong on a host, and how to mend it: checks that only look, never change anything."""

from __future__ import annotations

from dra_agent.doctor.commands import CommandResult, CommandRunner, SystemCommandRunner
from dra_agent.doctor.context import CheckContext, LedgerSummary, OtherAgent
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
    "Severity",
    "SystemCommandRunner",
    "run_checks",
    "is_healthy",
]
