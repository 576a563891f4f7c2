"""The messages match those of the kubelet, and the generated code matches the .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dra_agent.kubelet_plugin.proto import (
    dra_v1_pb2,
    health_v1_pb2,
    health_v1alpha1_pb2,
    pluginregistration_pb2,
    podresources_v1_pb2,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("dra_agent/kubelet_plugin/proto")


def test_generated_code_is_reproducible(tmp_path: Path) -> None:
    sources = sorted((ROOT / "python" / FOLDER).glob("*.proto"))
    assert len(sources) == 5
    plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    compiler = [sys.executable, "-m", "grpc_tools.protoc", f"--plugin=protoc-gen-mypy={plugin}"]
    outputs = [f"-I{ROOT / 'python'}", f"--python_out={tmp_path}", f"--mypy_out=quiet:{tmp_path}"]
    subprocess.run([*compiler, *outputs, *map(str, sources)], check=True)
    generated = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    committed = sorted(path.name for path in (ROOT / "python" / FOLDER).glob("*_pb2.py*"))
    assert generated == committed
    for name in generated:
        assert (tmp_path / FOLDER / name).read_bytes() == (ROOT / "python" / FOLDER / name).read_bytes(), name


@pytest.mark.parametrize(
    ("messages", "service", "methods"),
    [
        (pluginregistration_pb2, "pluginregistration.Registration", ["GetInfo", "NotifyRegistrationStatus"]),
        (dra_v1_pb2, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", ["NodePrepareResources", "NodeUnprepareResources"]),
        (health_v1_pb2, "v1.DRAResourceHealth", ["NodeWatchResources"]),
        (health_v1alpha1_pb2, "v1alpha1.DRAResourceHealth", ["NodeWatchResources"]),
        (podresources_v1_pb2, "v1.PodResourcesLister", ["List"]),
    ],
)
def test_service_names_match_the_kubelet(messages: ModuleType, service: str, methods: list[str]) -> None:
    descriptor = messages.DESCRIPTOR.services_by_name[service.rpartition(".")[2]]
    assert descriptor.full_name == service
    assert [method.name for method in descriptor.methods] == methods


def test_encoding_of_a_prepared_device() -> None:
    device = dra_v1_pb2.Device(
        request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["v/c=n"], share_id="s"
    )
    assert device.SerializeToString() == b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x05v/c=n\x2a\x01s"
    response = dra_v1_pb2.NodePrepareResourcesResponse()
    response.claims["u"].error = "e"
    assert response.SerializeToString() == b"\x0a\x08\x0a\x01u\x12\x03\x12\x01e"


def test_encoding_of_device_health() -> None:
    health = health_v1_pb2.DeviceHealth(
        device=health_v1_pb2.DeviceIdentifier(pool_name="p", device_name="d"),
        health=health_v1_pb2.UNHEALTHY,
        last_updated_time=7,
        health_check_timeout_seconds=30,
        message="m",
    )
    assert health.SerializeToString() == b"\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\x07\x20\x1e\x2a\x01m"


def test_encoding_of_the_containers_of_a_claim() -> None:
    response = podresources_v1_pb2.ListPodResourcesResponse()
    container = response.pod_resources.add(name="p", namespace="n").containers.add(name="c")
    container.dynamic_resources.add(claim_name="k", claim_namespace="n")
    assert response.SerializeToString() == b"\x0a\x13\x0a\x01p\x12\x01n\x1a\x0b\x0a\x01c\x2a\x06\x12\x01k\x1a\x01n"


def test_encoding_of_plugin_info() -> None:
    info = pluginregistration_pb2.PluginInfo(type="t", name="n", endpoint="e", supported_versions=["v"])
    assert info.SerializeToString() == b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v"
