"""A claim of a pod that is not bound yet: published conditions, the result for the scheduler, and taints."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.test_kubernetes_mode import DRIVER, GPU, kubernetes, prepare, registered
from eventually import eventually
from fake_apiserver.fake import FakeApi

from .conftest import AgentProcess

__all__ = ["kubernetes"]

PREPARED, FAILED = f"{DRIVER}/Prepared", f"{DRIVER}/PrepareFailed"
FAILS = """\
from dra_agent.errors import PermanentError
from dra_agent.prepare.preparer import Preparer
def fail(self, claim, deadline=None):
    raise PermanentError("the GPU has no such mode", where="gpu")
Preparer.prepare_ahead = fail
"""


@pytest.fixture
def config(tmp_path: Path) -> tuple[str, str]:
    """Flags of an agent that prepares claims for GPUs ahead."""
    (tmp_path / "config.toml").write_text(
        f"""[[inventory.prepare_ahead]]\nwhen = 'device.attributes["{DRIVER}"].type == "gpu"'\n"""
    )
    return "--config", str(tmp_path / "config.toml")


@pytest.fixture(autouse=True)
def node_object(fake_api: FakeApi) -> None:
    fake_api.put("nodes", {"metadata": {"name": "node-a"}})


def published(api: FakeApi) -> dict[str, dict[str, Any]]:
    slices = api.objects("resourceslices")
    return {device["name"]: device for slice_ in slices for device in slice_["spec"].get("devices") or ()}


def versions(api: FakeApi) -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in api.objects("resourceslices")}


def nominate(api: FakeApi, name: str) -> tuple[str, str, str]:
    """Allocate the GPU to a claim with the conditions of the device, for a pod that waits for the node."""
    device = published(api)[GPU]
    conditions = {key: device[key] for key in ("bindingConditions", "bindingFailureConditions")}
    result = {"request": "gpu", "driver": DRIVER, "pool": "node-a/gpu", "device": GPU, **conditions}
    claim = api.put(
        "resourceclaims",
        {
            "metadata": {"namespace": "default", "name": name, "uid": str(uuid.uuid4())},
            "spec": {},
            "status": {"allocation": {"devices": {"results": [result]}}},
        },
    )
    api.put(
        "pods",
        {
            "metadata": {"namespace": "default", "name": f"pod-{name}", "uid": str(uuid.uuid4())},
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]},
            "status": {"nominatedNodeName": "node-a"},
        },
    )
    return "default", name, claim["metadata"]["uid"]


def conditions(api: FakeApi, name: str) -> dict[str, str]:
    devices = api.store.get("resourceclaims", "default", name)["status"].get("devices") or [{}]
    return {one["type"]: one["status"] for one in devices[0].get("conditions") or ()}


def test_from_the_nomination_to_the_request_of_the_kubelet(
    kubernetes: Callable[..., AgentProcess],
    fake_api: FakeApi,
    kubelet_dir: Path,
    config: tuple[str, str],
    tmp_path: Path,
) -> None:
    agent = kubernetes(*config)
    eventually(lambda: "bindingConditions" in published(fake_api).get(GPU, {}), agent.log_text)
    assert published(fake_api)[GPU]["bindingConditions"] == [PREPARED]
    assert published(fake_api)[GPU]["bindingFailureConditions"] == [FAILED]
    nic = eventually(lambda: published(fake_api).get("nic-0000-00-05-0"), agent.log_text)
    assert nic is not None and "bindingConditions" not in nic
    claim = nominate(fake_api, "one")
    eventually(lambda: conditions(fake_api, "one").get(PREPARED) == "True", agent.log_text)
    assert len(list((tmp_path / "cdi").glob("*.json"))) == 1
    # A restarted agent writes no slice and knows the claim, and the kubelet gets it.
    before = versions(fake_api)
    agent.end(signal.SIGKILL)
    agent = kubernetes(*config).ready()

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            assert not (await prepare(driver, claim)).error
            # Now it is the kubelet's, so it stays when the pod is bound and the allocation cannot be read.
            fake_api.remove("pods", "pod-one", "default")
            assert not (await prepare(driver, claim)).error

    asyncio.run(scenario())
    assert conditions(fake_api, "one")[FAILED] == "False"
    assert versions(fake_api) == before
    assert "Traceback" not in agent.log_text()


def test_a_claim_that_goes_elsewhere_is_released(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, config: tuple[str, str], tmp_path: Path
) -> None:
    agent = kubernetes(*config)
    eventually(lambda: "bindingConditions" in published(fake_api).get(GPU, {}), agent.log_text)
    nominate(fake_api, "one")
    eventually(lambda: conditions(fake_api, "one").get(PREPARED) == "True", agent.log_text)
    fake_api.set_status("resourceclaims", "default", "one", {})
    eventually(lambda: not list((tmp_path / "cdi").glob("*.json")), agent.log_text)


def test_a_failure_taints_the_device_before_it_is_reported(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, config: tuple[str, str]
) -> None:
    agent = kubernetes(*config, patch=FAILS)
    eventually(lambda: "bindingConditions" in published(fake_api).get(GPU, {}), agent.log_text)
    nominate(fake_api, "one")
    eventually(lambda: conditions(fake_api, "one").get(FAILED) == "True", agent.log_text)
    (taint,) = published(fake_api)[GPU]["taints"]
    assert (taint["key"], taint["effect"]) == (f"{DRIVER}/setup-failed", "NoSchedule")
    writes = [seen.path for seen in fake_api.writes() if seen.method in ("PUT", "PATCH")]
    tainted = next(at for at, path in enumerate(writes) if "resourceslices" in path)
    reported = next(at for at, path in enumerate(writes) if path.endswith("/resourceclaims/one/status"))
    assert tainted < reported
    eventually(lambda: any(event["reason"] == "PrepareFailed" for event in fake_api.objects("events")), agent.log_text)


def test_without_a_rule_pods_are_not_read(kubernetes: Callable[..., AgentProcess], fake_api: FakeApi) -> None:
    agent = kubernetes().ready()
    eventually(lambda: GPU in published(fake_api), agent.log_text)
    assert "bindingConditions" not in published(fake_api)[GPU]
    assert not [seen for seen in fake_api.requests if seen.path.endswith("/pods")]
