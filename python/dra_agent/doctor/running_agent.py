"""Checks of what the running agent reports: its configuration, and telemetry that is missing or cannot be true."""

from __future__ import annotations

import time
from collections.abc import Iterator

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, problem, warning
from dra_agent.errors import PermanentError
from dra_agent.telemetry.accounting import load

_MAX_AGE_INTERVALS = 3
"""Age of the last sample from which its failures are history."""
_LATE_DEVICE_S = 3.0
"""By how much one device that hangs can delay a sample (dra_agent.telemetry.sampler, DEVICE_TIMEOUT_S)."""


def check_configuration(context: CheckContext) -> Iterator[Finding]:
    """Report an agent that does not respond, a host without a name for its node, and a configuration not in effect."""
    if context.unreachable:
        yield problem(
            f"what the agent does is not known: {context.unreachable}",
            str(context.state_dir),
            "run the doctor as root; if it does not respond then, read its log (journalctl -u dra-agent), restart it",
        )
    if context.unnamed_node:
        yield warning(
            f"{context.unnamed_node}, so no agent can start here",
            "the host's name",
            "set node_name in the agent's configuration, or name the host: hostnamectl set-hostname NAME",
        )
    for refused in context.file_problems:
        if refused not in (context.reload_problems or ()):
            yield problem(
                f"no agent can start with this configuration: {refused}",
                "",
                "correct the file: `dra-agent config check` lists its problems",
            )
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
    if not context.reload_problems and not context.restart_keys and not context.file_problems:
        yield ok("the agent runs with the current configuration")


def check_reclaim(context: CheckContext) -> Iterator[Finding]:
    """Report sources of reclaim notices that the running agent cannot reach."""
    if context.sees_no_notice:
        hint = "allow the agent to reach them: a proxy, a firewall, a hop limit; `dra-agent reclaim status` shows each"
        yield problem(context.notices_missing, "", hint)
    elif context.notices_missing:
        hint = "`dra-agent reclaim status` shows each; the section [reclaim] of the configuration chooses them"
        yield warning(context.notices_missing, "", hint)
    elif context.notice_sources is not None:
        yield ok(f"{context.notice_sources} source{'' if context.notice_sources == 1 else 's'} of notices")


def check_telemetry(context: CheckContext) -> Iterator[Finding]:
    """Report what the last sample of the agent met; nothing without telemetry."""
    try:
        saved = load(context.state_dir)
    except PermanentError as error:
        yield warning(error.message, error.where or "", error.hint or "")
        return
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - saved.written_at
    if not 0 <= age_s <= _MAX_AGE_INTERVALS * saved.interval_seconds:
        # Otherwise of an agent that has stopped, or runs without telemetry now.
        interval_s = max(context.telemetry_interval_s, saved.interval_seconds)
        if context.telemetry_interval_s and not 0 <= age_s <= _MAX_AGE_INTERVALS * interval_s + _LATE_DEVICE_S:
            yield warning(
                "the agent has no current sample of its telemetry",
                "",
                "all values are absent in metrics; if it has not just been started, see its log, and restart it",
            )
        return
    for failure in saved.failures:
        yield warning(
            f"its telemetry is incomplete: {failure.source}: {failure.message}",
            failure.device,
            "its values are absent in metrics; check the kernel log, and `nvidia-smi -q` for a GPU of NVIDIA",
        )
