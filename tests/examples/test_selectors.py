"""The example classes and claims: valid, and free of errors on any device of a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent import _native
from dra_agent.manifests import LoadedObject, load_manifests

EXAMPLES = Path(__file__).parents[2] / "examples"
DRIVER = "dra-agent.internal"
GANGS = ("job-set.yaml", "pod-group.yaml", "kueue-workload.yaml")
WITH_WORKLOADS = {EXAMPLES / "what-if" / name for name in GANGS}
"""Examples of gangs, which also have kinds of other API groups."""

BARE_DEVICES = {
    "a NIC of which only the type is known": (DRIVER, {"type": {"string": "nic"}, "vendor": {"string": "0x1bcf"}}),
    "an FPGA of unknown size": (DRIVER, {"type": {"string": "fpga"}, "vendor": {"string": "xilinx"}}),
    "a GPU that its driver knows nothing of": (DRIVER, {"type": {"string": "gpu"}, "vendor": {"string": "0x1ed5"}}),
    "a device of another driver": ("other.example.com", {}),
}


def every_object() -> list[LoadedObject]:
    """Read all objects of DRA in examples without pods, which tests on a cluster apply."""
    paths = sorted(path for path in EXAMPLES.rglob("*.yaml") if path.parent != EXAMPLES / "pods")
    loaded = [one for path in paths for one in load_manifests(path, strict=path not in WITH_WORKLOADS)]
    return [one for one in loaded if one.value["apiVersion"].startswith("resource.k8s.io/")]


def expressions(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("expression"), str):
            yield value["expression"]
        for member in value.values():
            yield from expressions(member)
    elif isinstance(value, list):
        for member in value:
            yield from expressions(member)


def test_every_example_is_valid_and_uses_existing_classes() -> None:
    objects = every_object()
    classes = {loaded.name for loaded in objects if loaded.kind == "DeviceClass"}
    claims = [loaded for loaded in objects if loaded.kind == "ResourceClaim"]
    assert len(classes) == 15
    assert len(claims) == 19
    for claim in claims:
        for request in claim.value["spec"]["devices"]["requests"]:
            exact_requests = request.get("firstAvailable") or [request["exactly"]]
            assert {exact["deviceClassName"] for exact in exact_requests} <= classes, claim.file


@pytest.mark.parametrize("device", BARE_DEVICES)
def test_no_selector_fails_on_a_device_without_the_attribute(device: str) -> None:
    driver, attributes = BARE_DEVICES[device]
    encoded = msgspec.json.encode({"name": "d", "attributes": attributes})
    for loaded in every_object():
        for expression in expressions(loaded.value):
            _native.CelExpression.selector(expression).matches(driver, encoded)


def test_no_class_selects_a_device_of_another_driver() -> None:
    attributes = {"type": {"string": "gpu"}, "vendor": {"string": "nvidia"}, "tensorCores": {"bool": True}}
    encoded = msgspec.json.encode({"name": "d", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}})
    for loaded in every_object():
        if loaded.kind == "DeviceClass":
            selectors = [_native.CelExpression.selector(text) for text in expressions(loaded.value)]
            assert not all(selector.matches("other.example.com", encoded) for selector in selectors), loaded.name


@pytest.mark.parametrize(
    ("memory", "capability", "classes"),
    [
        # As NVML reports an L4, an A100 40GB, an L40S, a T4, an H100 80GB and a GTX 1070.
        (
            "23034Mi",
            "8.9.0",
            {"nvidia-high-memory", "inference", "development", "gpu", "nvidia-gpu", "gpu-with-notice", "interactive"},
        ),
        (
            "40Gi",
            "8.0.0",
            {"nvidia-high-memory", "inference", "development", "gpu", "nvidia-gpu", "gpu-with-notice", "interactive"},
        ),
        (
            "46068Mi",
            "8.9.0",
            {
                "nvidia-high-memory",
                "research",
                "inference",
                "development",
                "gpu",
                "nvidia-gpu",
                "gpu-with-notice",
                "interactive",
            },
        ),
        ("15360Mi", "7.5.0", {"inference", "development", "gpu", "nvidia-gpu", "gpu-with-notice", "interactive"}),
        (
            "81559Mi",
            "9.0.0",
            {
                "nvidia-high-memory",
                "research",
                "inference",
                "development",
                "gpu",
                "nvidia-gpu",
                "gpu-with-notice",
                "interactive",
            },
        ),
        ("8192Mi", "6.1.0", {"development", "gpu", "nvidia-gpu", "gpu-with-notice", "interactive"}),
    ],
)
def test_classes_select_the_expected_nvidia_gpus(memory: str, capability: str, classes: set[str]) -> None:
    tensor_cores = not capability.startswith("6")
    attributes = {
        "type": {"string": "gpu"},
        "vendor": {"string": "nvidia"},
        "cudaComputeCapability": {"version": capability},
        "tensorCores": {"bool": tensor_cores},
    }
    device = msgspec.json.encode({"name": "d", "attributes": attributes, "capacity": {"memory": {"value": memory}}})
    selecting = {
        loaded.name
        for loaded in every_object()
        if loaded.kind == "DeviceClass"
        and all(_native.CelExpression.selector(text).matches(DRIVER, device) for text in expressions(loaded.value))
    }
    assert selecting == classes
