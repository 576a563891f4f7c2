"""Check of the configuration that the running agent uses."""

from __future__ import annotations

from collections.abc import Iterator

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, problem, warning


def check_configuration(context: CheckContext) -> Iterator[Finding]:
    """Report a reload that was refused, and changes that need a restart; nothing without an agent."""
    if context.reload_problems is None:
        return
    for refused in context.reload_problems:
        yield problem(
            f"the agent runs with an earlier configuration: {refused}",
            "",
            "correct it; the agent reads the file again when it changes",
        )
    if context.restart_keys:
        keys = ", ".join(context.restart_keys)
        yield warning(f"changed settings apply at the next start of the agent: {keys}", "", "restart the agent")
    if not context.reload_problems and not context.restart_keys:
        yield ok("the agent runs with the current configuration")
