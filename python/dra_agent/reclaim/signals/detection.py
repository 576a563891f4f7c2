"""The sources of this host, from the configuration, or detected from the firmware.

Detection takes a few reads below /sys. A metadata service is never probed: on a host that is in no
known cloud, 169.254.169.254 may be anything.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

from dra_agent.host import Host
from dra_agent.reclaim.settings import ReclaimSettings
from dra_agent.reclaim.signal import SignalSource

Cloud = Literal["aws", "gcp", "azure", "none"]

AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
"""The chassis' asset tag of every Azure VM, by which it differs from any other machine on Hyper-V."""
_MAX_FIELD_BYTES = 256


def cloud_of(host: Host) -> Cloud:
    """Which cloud the host's firmware names."""
    dmi = host.sysfs / "class" / "dmi" / "id"
    vendor = _read(dmi / "sys_vendor")
    if vendor == "Amazon EC2" or _read(dmi / "bios_vendor") == "Amazon EC2" or "amazon" in _read(dmi / "bios_version"):
        return "aws"
    if vendor == "Google" or _read(dmi / "product_name") == "Google Compute Engine":
        return "gcp"
    if vendor == "Microsoft Corporation" and _read(dmi / "chassis_asset_tag") == AZURE_ASSET_TAG:
        return "azure"
    return "none"


def select_sources(settings: ReclaimSettings, host: Host) -> list[SignalSource]:
    """Make the sources that need no API server; UsageError where the configuration names none that can be."""
    sources: list[SignalSource] = []
    lead = timedelta(seconds=settings.lead_seconds)
    match cloud_of(host) if settings.cloud == "auto" else settings.cloud:
        case "aws":
            from dra_agent.reclaim.signals.aws import AwsSource

            sources.append(AwsSource(settings.endpoint, lead=lead, signals=settings.aws))
        case "gcp":
            from dra_agent.reclaim.signals.gcp import GcpSource

            preemption = timedelta(seconds=settings.gcp_preemption_seconds)
            maintenance = timedelta(seconds=settings.gcp_maintenance_seconds)
            sources.append(
                GcpSource(
                    settings.endpoint,
                    preemption=preemption,
                    maintenance=maintenance,
                    lead=lead,
                    signals=settings.gcp,
                )
            )
        case "azure":
            from dra_agent.reclaim.signals.azure import AzureSource

            sources.append(
                AzureSource(
                    settings.endpoint,
                    vm=settings.azure_vm_name,
                    lead=lead,
                    acknowledge=settings.azure_acknowledge,
                    signals=settings.azure,
                )
            )
    uses_logind = settings.logind == "on" or (settings.logind == "auto" and _has_bus(settings, host))
    if uses_logind and settings.shutdown != "ignore":
        from dra_agent.reclaim.signals.logind import LogindSource

        sources.append(LogindSource(settings.dbus_address, treatment=settings.shutdown))
    if settings.file is not None:
        from dra_agent.reclaim.signals.file import FileSource

        sources.append(FileSource(settings.file))
    return sources


def _has_bus(settings: ReclaimSettings, host: Host) -> bool:
    # A simulated host does not shut down with the one that it runs on.
    path = settings.dbus_address.partition("unix:path=")[2].partition(",")[0]
    return host.sysfs == Path("/sys") and bool(path) and Path(path).is_socket()


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FIELD_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""
