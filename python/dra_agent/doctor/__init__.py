"""What is wrong on a host, and how to mend it: checks that only look, never change anything."""

from __future__ import annotations

from dra_agent.doctor.commands import Commands, Result, SystemCommands
from dra_agent.doctor.examination import Examination, Ledger, OtherAgent
from dra_agent.doctor.examine import CHECKS, examine, is_healthy
from dra_agent.doctor.finding import Finding, Severity

__all__ = [
    "CHECKS",
    "Commands",
    "Examination",
    "Finding",
    "Ledger",
    "OtherAgent",
    "Result",
    "Severity",
    "SystemCommands",
    "examine",
    "is_healthy",
]
