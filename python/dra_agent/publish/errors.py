"""Errors that prevent the publication of slices."""

from __future__ import annotations

from collections.abc import Iterable

from dra_agent.errors import PermanentError
from dra_agent.publish.feature_gates import COUNTERS


class PartiallyAcceptedError(PermanentError):
    """The API server drops fields of a slice; the rest is published."""

    def __init__(self, pool: str, fields: Iterable[str], message: str, hint: str) -> None:
        """`{fields}` in `message` is replaced by the first of them."""
        self.pool = pool
        self.fields = tuple(sorted(fields))
        """Paths such as `devices[gpu-0000-3b-00-0].taints`."""
        shown = ", ".join(self.fields[:3]) + (f" and {len(self.fields) - 3} more" if len(self.fields) > 3 else "")
        super().__init__(message.replace("{fields}", shown), where=f"pool {pool}", hint=hint)


class DroppedFieldsError(PartiallyAcceptedError):
    """The API server stored a slice without some of its fields: a feature gate is off."""

    def __init__(self, pool: str, fields: Iterable[str], gates: Iterable[str], instead: str) -> None:
        self.gates = tuple(sorted(gates))
        named = " or ".join(self.gates) if self.gates else "a feature gate that this agent does not know"
        # Version 1.34 has counters in another form, which the agent does not publish.
        version = " of Kubernetes 1.35 or newer" if COUNTERS in self.gates else ""
        super().__init__(
            pool,
            fields,
            f"the API server drops {{fields}}; {instead}",
            f"enable {named} in kube-apiserver, kube-scheduler and the kubelets{version}; "
            "the agent retries automatically",
        )


class UnsupportedTaintEffectError(PartiallyAcceptedError):
    """The API server does not support taints with effect None, which prevent nothing: they are omitted."""

    def __init__(self, pool: str, fields: Iterable[str]) -> None:
        super().__init__(
            pool,
            fields,
            "the API server does not take taints of the effect None ({fields}); they are left out, "
            "so the slices do not show that a device is not monitored",
            "Kubernetes 1.35 or later takes them where the feature gate DRADeviceTaints is on, as it is from 1.36; "
            'unmonitored = "none" in [health] publishes none',
        )
