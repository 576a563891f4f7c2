"""Check of telemetry: sources that do not respond or whose values cannot be true."""

from __future__ import annotations

import time
from collections.abc import Iterator

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, warning
from dra_agent.errors import PermanentError
from dra_agent.telemetry.accounting import load

_MAX_AGE_INTERVALS = 3
"""Age of the last sample from which its failures are history."""


def check_telemetry(context: CheckContext) -> Iterator[Finding]:
    """Report what the last sample of the agent met; nothing without telemetry."""
    try:
        saved = load(context.state_dir)
    except PermanentError as error:
        yield warning(error.message, error.where or "", error.hint or "")
        return
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - saved.written_at
    if not 0 <= age_s <= _MAX_AGE_INTERVALS * saved.interval_seconds:
        return  # of an agent that has stopped, or runs without telemetry now
    for failure in saved.failures:
        yield warning(
            f"its telemetry is incomplete: {failure.source}: {failure.message}",
            failure.device,
            "its values are absent in metrics; check the kernel log, and `nvidia-smi -q` for a GPU of NVIDIA",
        )
