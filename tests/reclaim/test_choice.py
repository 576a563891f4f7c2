"""Selection of the signal sources of a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_agent.errors import UsageError
from dra_agent.host import Host
from dra_agent.reclaim.settings import AwsSignals, GcpSignals, ReclaimSettings
from dra_agent.reclaim.signals.detection import cloud_of, select_sources
from dra_agent.reclaim.signals.http import MetadataService


def host(tmp_path: Path, **dmi: str) -> Host:
    folder = tmp_path / "class" / "dmi" / "id"
    folder.mkdir(parents=True)
    for name, text in dmi.items():
        (folder / name).write_bytes(text.encode("latin-1") + b"\n")
    return Host(sysfs=tmp_path)


@pytest.mark.parametrize(
    ("dmi", "cloud"),
    [
        ({"sys_vendor": "Amazon EC2", "product_name": "p5.48xlarge"}, "aws"),
        ({"sys_vendor": "Xen", "bios_version": "4.11.amazon"}, "aws"),
        ({"sys_vendor": "a partner", "bios_vendor": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gcp"),
        # As in the Azure documentation and in cloud-init.
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"}, "azure"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "1234"}, "none"),  # on-premises Hyper-V
        ({"sys_vendor": "NVIDIA", "product_name": "DGXH100"}, "none"),
        ({"sys_vendor": "\xff\xfe" + "x" * 5000}, "none"),
        ({}, "none"),
    ],
)
def test_the_firmware_identifies_the_cloud(tmp_path: Path, dmi: dict[str, str], cloud: str) -> None:
    assert cloud_of(host(tmp_path, **dmi)) == cloud


def names(settings: ReclaimSettings, host: Host) -> list[str]:
    return [name for source in select_sources(settings, host) for name in source.names]


def test_an_unknown_host_has_no_source(tmp_path: Path) -> None:
    assert select_sources(ReclaimSettings(), host(tmp_path)) == []


def test_the_configuration_overrides_the_firmware(tmp_path: Path) -> None:
    google_host = host(tmp_path, sys_vendor="Google")
    assert names(ReclaimSettings(), google_host) == ["gcp.preempted", "gcp.maintenance"]
    assert names(ReclaimSettings(cloud="azure"), google_host) == ["azure"]
    assert names(ReclaimSettings(cloud="none", file=Path("/run/x"), logind="on"), google_host) == ["logind", "file"]
    assert "aws.spot" in names(ReclaimSettings(cloud="aws"), google_host)


def test_signals_that_are_ignored_are_not_requested(tmp_path: Path) -> None:
    settings = {
        "aws": ReclaimSettings(cloud="aws", aws=AwsSignals(spot="ignore")),
        "gcp": ReclaimSettings(cloud="gcp", gcp=GcpSignals(preempted="ignore")),
    }
    names = {
        cloud: [name for source in select_sources(chosen, Host(sysfs=tmp_path)) for name in source.names]
        for cloud, chosen in settings.items()
    }
    assert names == {"aws": ["aws.autoscaling", "aws.maintenance"], "gcp": ["gcp.maintenance"]}


def test_a_simulated_host_ignores_shutdowns_of_the_real_host(tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as bus:
        bus.bind(str(tmp_path / "bus"))
        # The machine that runs the tests may be a cloud VM.
        settings = ReclaimSettings(cloud="none", dbus_address=f"unix:path={tmp_path}/bus,guid=1")
        assert names(settings, Host(sysfs=tmp_path)) == []
        assert names(settings, Host()) == ["logind"]
        assert names(ReclaimSettings(cloud="none", dbus_address="unix:path=/nowhere"), Host()) == []


@pytest.mark.parametrize(
    "endpoint", ["https://x", "ftp://x", "x", "http://", "http://h:99999", "http://u@h", "http://h/path", "http://é"]
)
def test_an_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="HOST"):
        MetadataService(endpoint)
