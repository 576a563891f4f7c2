"""What keeps slices from being published as they should be."""

from __future__ import annotations

from collections.abc import Iterable

from dra_agent.errors import PermanentError


class PartiallyAcceptedError(PermanentError):
    """The API server does not take all that a slice has to say; the rest is published."""

    def __init__(self, pool: str, fields: Iterable[str], what: str, hint: str) -> None:
        """In `what`, {fields} stands for the first of them."""
        self.pool = pool
        self.fields = tuple(sorted(fields))
        """Paths such as `devices[gpu-0000-3b-00-0].taints`."""
        shown = ", ".join(self.fields[:3]) + (f" and {len(self.fields) - 3} more" if len(self.fields) > 3 else "")
        super().__init__(what.replace("{fields}", shown), where=f"pool {pool}", hint=hint)


class DroppedFieldsError(PartiallyAcceptedError):
    """The API server took a slice without some of its fields: a feature gate is off."""

    def __init__(self, pool: str, fields: Iterable[str], gates: Iterable[str], instead: str) -> None:
        self.gates = tuple(sorted(gates))
        named = " or ".join(self.gates) if self.gates else "a feature gate that this agent does not know"
        super().__init__(
            pool,
            fields,
            f"the API server drops {{fields}}; {instead}",
            f"enable {named} in kube-apiserver and kube-scheduler; the agent asks again by itself",
        )


class UnsupportedTaintEffectError(PartiallyAcceptedError):
    """The API server does not know taints of the effect None, which keep nobody away: they are left out."""

    def __init__(self, pool: str, fields: Iterable[str]) -> None:
        super().__init__(
            pool,
            fields,
            "the API server does not take taints of the effect None ({fields}); they are left out, "
            "so nobody sees in the slices that a device is not monitored",
            "Kubernetes 1.35 or later takes them where the feature gate DRADeviceTaints is on, as it is from 1.36; "
            'unmonitored = "none" in [health] publishes none',
        )
