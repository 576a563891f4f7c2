"""The messages are those of the kubelet, and the generated code is that of the .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dra_agent.kubelet_plugin.proto import (
    dra_v1_pb2,
    dra_v1beta1_pb2,
    health_v1_pb2,
    health_v1alpha1_pb2,
    pluginregistration_pb2,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("dra_agent/kubelet_plugin/proto")


def test_generating_again_gives_the_same_bytes(tmp_path: Path) -> None:
    sources = sorted((ROOT / "python" / FOLDER).glob("*.proto"))
    assert len(sources) == 5
    plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    compiler = [sys.executable, "-m", "grpc_tools.protoc", f"--plugin=protoc-gen-mypy={plugin}"]
    outputs = [f"-I{ROOT / 'python'}", f"--python_out={tmp_path}", f"--mypy_out=quiet:{tmp_path}"]
    subprocess.run([*compiler, *outputs, *map(str, sources)], check=True)
    made = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    committed = sorted(path.name for path in (ROOT / "python" / FOLDER).glob("*_pb2.py*"))
    assert made == committed
    for name in made:
        assert (tmp_path / FOLDER / name).read_bytes() == (ROOT / "python" / FOLDER / name).read_bytes(), name


@pytest.mark.parametrize(
    ("messages", "service", "methods"),
    [
        (pluginregistration_pb2, "pluginregistration.Registration", ["GetInfo", "NotifyRegistrationStatus"]),
        (dra_v1_pb2, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", ["NodePrepareResources", "NodeUnprepareResources"]),
        (
            dra_v1beta1_pb2,
            "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
            ["NodePrepareResources", "NodeUnprepareResources"],
        ),
        (health_v1_pb2, "v1.DRAResourceHealth", ["NodeWatchResources"]),
        (health_v1alpha1_pb2, "v1alpha1.DRAResourceHealth", ["NodeWatchResources"]),
    ],
)
def test_services_have_their_names_on_the_wire(messages: ModuleType, service: str, methods: list[str]) -> None:
    found = messages.DESCRIPTOR.services_by_name[service.rpartition(".")[2]]
    assert found.full_name == service
    assert [method.name for method in found.methods] == methods


@pytest.mark.parametrize("messages", [dra_v1_pb2, dra_v1beta1_pb2])
def test_a_prepared_device_on_the_wire(messages: ModuleType) -> None:
    device = messages.Device(
        request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["v/c=n"], share_id="s"
    )
    assert device.SerializeToString() == b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x05v/c=n\x2a\x01s"
    answer = messages.NodePrepareResourcesResponse()
    answer.claims["u"].error = "e"
    assert answer.SerializeToString() == b"\x0a\x08\x0a\x01u\x12\x03\x12\x01e"


def test_health_on_the_wire() -> None:
    told = health_v1_pb2.DeviceHealth(
        device=health_v1_pb2.DeviceIdentifier(pool_name="p", device_name="d"),
        health=health_v1_pb2.UNHEALTHY,
        last_updated_time=7,
        health_check_timeout_seconds=30,
        message="m",
    )
    assert told.SerializeToString() == b"\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\x07\x20\x1e\x2a\x01m"


def test_plugin_info_on_the_wire() -> None:
    info = pluginregistration_pb2.PluginInfo(type="t", name="n", endpoint="e", supported_versions=["v"])
    assert info.SerializeToString() == b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v"
