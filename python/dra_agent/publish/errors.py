"""What keeps slices from being published as they should be."""

from __future__ import annotations

from collections.abc import Iterable

from dra_agent.errors import PermanentError


class DroppedFieldsError(PermanentError):
    """The API server took a slice without some of its fields: a feature gate is off."""

    def __init__(self, pool: str, fields: Iterable[str], gates: Iterable[str], instead: str) -> None:
        self.pool = pool
        self.fields = tuple(sorted(fields))
        """Paths such as `devices[gpu-0000-3b-00-0].taints`."""
        self.gates = tuple(sorted(gates))
        shown = ", ".join(self.fields[:3]) + (f" and {len(self.fields) - 3} more" if len(self.fields) > 3 else "")
        named = " or ".join(self.gates) if self.gates else "a feature gate that this agent does not know"
        super().__init__(
            f"the API server drops {shown}; {instead}",
            where=f"pool {pool}",
            todo=f"enable {named} in kube-apiserver and kube-scheduler, then restart the agent",
        )
