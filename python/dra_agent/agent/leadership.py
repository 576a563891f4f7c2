"""Which of the agents that share a state directory is the leader and writes to the API server."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dra_agent.agent.rolling_update import InstanceRegistry, LeadershipState
from dra_agent.errors import RetryableError

log = logging.getLogger(__name__)


class Leadership:
    """See dra_agent.publish.access.Peers. An agent that shares its state directory with no other always leads."""

    def __init__(self, instances: InstanceRegistry | None) -> None:
        self._instances = instances
        self._leads = True
        self._known = True
        self._state = LeadershipState.UNABLE

    def is_leader(self) -> bool:
        """Return True if this agent is the leader; the last known value if the disk does not respond."""
        if self._instances is None:
            return True
        try:
            self._leads = self._instances.is_leader()
        except RetryableError as error:
            # Two that write the same for a while do less harm than none.
            if self._known:
                log.warning("it is not known which agent leads", extra={"reason": str(error), "leads": self._leads})
            self._known = False
        else:
            self._known = True
        return self._leads

    def has_able_elder(self) -> bool:
        """Return True if an older running agent can write; False if the disk does not respond."""
        try:
            return self._instances is not None and self._instances.has_able_elder()
        except RetryableError:
            return False

    def report_able(self, able: bool) -> None:
        """Record, for the other agents, if this one can write."""
        if self._state is not LeadershipState.STOPPING:
            self._report(LeadershipState.ABLE if able else LeadershipState.UNABLE)

    def resign(self) -> None:
        """Let another agent lead from now on, where one lives."""
        self._report(LeadershipState.STOPPING)

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Call `changed` on the running loop each time another agent, or this one, becomes the leader."""

        def record(leads: bool) -> None:
            self._leads = leads
            changed(leads)

        if self._instances is not None:
            self._instances.watch(record)

    def _report(self, state: LeadershipState) -> None:
        self._state = state
        if self._instances is None:
            return
        try:
            self._instances.report(state)
        except RetryableError as error:
            log.error(
                "cannot record for the other agents of this node if this one can write", extra={"reason": str(error)}
            )
