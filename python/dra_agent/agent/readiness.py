"""Whether the agent can prepare claims, and why not: the responses of /readyz."""

from __future__ import annotations

from dra_agent.agent.liveness import LivenessMonitor
from dra_agent.agent.parts import Parts


class Readiness:
    """The state of the agent, and the failures of its parts."""

    def __init__(self, parts: Parts, liveness: LivenessMonitor) -> None:
        self._parts = parts
        self._liveness = liveness
        self.not_ready = "starting"
        """Why the agent as a whole serves no claims; "" while it does."""

    def failures(self) -> list[str]:
        """Return why claims cannot be prepared; none if they can."""
        ledger, specs, mode = self._parts.ledger, self._parts.specs, self._parts.mode
        failures = [self.not_ready] if self.not_ready else []
        if ledger is not None and not self.not_ready and (why := ledger.report.not_writable):
            failures.append(f"no claim can be recorded: {why}")
        if specs is not None and not self.not_ready and (why := specs.unwritable_reason()):
            failures.append(why)
        if mode is not None:
            failures += mode.failures
        return failures + self._liveness.failures()
