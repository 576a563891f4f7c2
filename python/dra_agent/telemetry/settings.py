"""The `[telemetry]` section of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class TelemetrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[telemetry]`."""

    interval: Annotated[int, msgspec.Meta(ge=0, le=3600)] = 0
    """Seconds between two samples of all devices. 0: no telemetry, and nothing of it is loaded."""
    claim_labels: Literal["auto", "on", "off"] = "auto"
    """Whether metrics name claims. auto: where /metrics needs a token, and has TLS or a loopback address."""
    claim_pods: bool = False
    """Whether /metrics also has the pods of each claim, where it has names of claims."""
    claim_containers: bool = False
    """In a cluster: whether /metrics also has the containers of each claim, from the kubelet's PodResources API."""
