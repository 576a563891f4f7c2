"""The status of claims on a real API server: status.devices, Events, and the permissions for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER
from cluster.kube.api import CLASSES, EVENTS, Object
from cluster.kube.cluster import Cluster
from cluster.kube.process import LONG_TIMEOUT_S
from cluster.kube.workload import Namespace, opaque, request
from dra_agent.kube_client import connect
from dra_agent.status import EventRecorder, ObjectReference
from dra_agent.status.events import DEVICE_HELD, SECOND_MANAGER

OTHER = "other.example.com"


def gpu(driver: str) -> str:
    return f'device.attributes["{driver}"].type == "gpu"'


def status_entries(namespace: Namespace, claim: str, driver: str = DRIVER) -> list[Object]:
    """Return the driver's entries of status.devices."""
    devices = namespace.get_claim(claim)["status"].get("devices", [])
    return [entry for entry in devices if entry["driver"] == driver]


def ready_condition(entry: Object) -> Object:
    found: list[Object] = entry["conditions"]
    (condition,) = (one for one in found if one["type"] == "Ready")
    return condition


def api_time() -> str:
    """Return the current time in the format of the API."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def managers(claim: Object) -> dict[str, Any]:
    return {entry["manager"]: entry for entry in claim["metadata"]["managedFields"]}


def assert_never(condition: Callable[[], object], seconds: float) -> None:
    """Assert for a while that something does not happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not condition()
        time.sleep(0.1)


def test_claim_status_describes_its_devices(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", "dgx-h100", "--claim-status", "all")
    namespace.claim("mine", request("gpu", "gpu"), request("nic", "rdma-nic"))
    namespace.pod("user", claim="mine", node="node-a")
    namespace.running("user")
    namespace.api.wait(lambda: len(status_entries(namespace, "mine")) == 2, "the claim's status has the devices")
    entries = {entry["device"]: entry for entry in status_entries(namespace, "mine")}
    results = {result["request"]: result["device"] for result in namespace.results("mine")}
    gpu, nic = entries[results["gpu"]], entries[results["nic"]]
    assert ready_condition(gpu)["status"] == "True"
    published = agent.devices()[results["gpu"]]["attributes"]
    assert gpu["data"]["pciAddress"] == published["resource.kubernetes.io/pciBusID"]["string"]
    assert gpu["data"]["uuid"] == published["uuid"]["string"]
    assert gpu["data"]["productName"] == published["productName"]["string"]
    assert nic["networkData"]["interfaceName"] == agent.devices()[results["nic"]]["attributes"]["ifName"]["string"]
    assert nic["networkData"]["hardwareAddress"]
    claim = namespace.get_claim("mine")
    managed = managers(claim)[DRIVER]
    assert (managed["operation"], managed["subresource"]) == ("Apply", "status")
    assert set(managed["fieldsV1"]["f:status"]) == {"f:devices"}, "the agent owns no other field of the status"


def test_claim_status_is_not_rewritten_after_a_restart(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", "dgx-h100", "--claim-status", "all")
    namespace.claim("mine", request("gpu", "gpu"))
    namespace.pod("user", claim="mine", node="node-a")
    namespace.running("user")
    namespace.api.wait(lambda: status_entries(namespace, "mine"), "the claim's status has the device")
    before = namespace.get_claim("mine")
    agent.restart().ready()
    agent.kill()
    agent.start().ready()
    # The agent checks held claims half a second after its start.
    assert_never(lambda: namespace.get_claim("mine") != before, 3.0)


def test_status_entry_of_another_driver_is_not_changed(start_agent: StartAgent, namespace: Namespace) -> None:
    # Both simulate hardware at the same addresses: `--second-manager publish` publishes it in spite of the conflict.
    start_agent("node-a", "l40s", "--claim-status", "all", "--second-manager", "publish", driver=OTHER)
    agent = start_agent("node-a", "dgx-h100", "--claim-status", "all", "--second-manager", "publish")
    anything = f"{namespace.name}-any"
    namespace.api.create(CLASSES, {"metadata": {"name": anything}, "spec": {}})
    namespace.claim(
        "both",
        request("ours", anything, f'device.driver == "{DRIVER}" && {gpu(DRIVER)}'),
        request("theirs", anything, f'device.driver == "{OTHER}" && {gpu(OTHER)}'),
    )
    namespace.pod("user", claim="both", node="node-a")
    namespace.running("user")
    for driver in (DRIVER, OTHER):
        namespace.api.wait(partial(status_entries, namespace, "both", driver), f"{driver} has written its entry")
    foreign_entries = status_entries(namespace, "both", OTHER)
    own_entries = status_entries(namespace, "both")
    assert "H100" in own_entries[0]["data"]["productName"] and "L40S" in foreign_entries[0]["data"]["productName"]
    agent.simulate("unplug", own_entries[0]["data"]["pciAddress"])
    # The device can become unhealthy first, if a health poll comes before the removal: DeviceGone is the final reason.
    namespace.api.wait(
        lambda: ready_condition(status_entries(namespace, "both")[0])["reason"] == "DeviceGone", "the condition follows"
    )
    assert ready_condition(status_entries(namespace, "both")[0])["status"] == "False"
    assert status_entries(namespace, "both", OTHER) == foreign_entries


def test_claim_status_follows_the_device_health(start_agent: StartAgent, namespace: Namespace, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    # An uncorrected memory error is reported and repels new claims; short times for a fast recovery.
    config.write_text("[health]\nrecovery_seconds = 1\nevent_seconds = 30\n")
    agent = start_agent("node-a", "dgx-h100", "--claim-status", "all", "--config", str(config))
    namespace.claim("mine", request("gpu", "gpu"))
    namespace.pod("user", claim="mine", node="node-a")
    namespace.running("user")
    namespace.api.wait(lambda: status_entries(namespace, "mine"), "the claim's status has the device")
    (before,) = status_entries(namespace, "mine")
    assert ready_condition(before)["status"] == "True"
    # API times are whole seconds.
    namespace.api.wait(lambda: api_time() > ready_condition(before)["lastTransitionTime"], "the next second has begun")
    agent.simulate("xid", before["data"]["pciAddress"], "48")
    during: Object = {}

    def is_unhealthy() -> bool:
        (entry,) = status_entries(namespace, "mine")
        during.update(entry)
        return bool(ready_condition(entry)["status"] == "False")

    namespace.api.wait(is_unhealthy, "the condition follows")
    assert ready_condition(during)["reason"] == "Unhealthy" and "XID 48" in ready_condition(during)["message"]

    def event_reasons() -> set[str]:
        return {event.partition(":")[0] for event in namespace.events("mine")}

    namespace.api.wait(lambda: "DeviceUnhealthy" in event_reasons(), "the claim has the Event")
    namespace.api.wait(
        lambda: ready_condition(status_entries(namespace, "mine")[0])["status"] == "True", "it has recovered"
    )
    namespace.api.wait(lambda: "DeviceHealthy" in event_reasons(), "the claim has the Event")
    assert (
        ready_condition(status_entries(namespace, "mine")[0])["lastTransitionTime"]
        > ready_condition(during)["lastTransitionTime"]
    )
    assert ready_condition(during)["lastTransitionTime"] > ready_condition(before)["lastTransitionTime"]


def test_claim_status_is_removed_by_deallocation(start_agent: StartAgent, namespace: Namespace) -> None:
    start_agent("node-a", "dgx-h100", "--claim-status", "all")
    namespace.claim("mine", request("gpu", "gpu"))
    namespace.pod("user", claim="mine", node="node-a")
    namespace.running("user")
    namespace.api.wait(lambda: status_entries(namespace, "mine"), "the claim's status has the device")
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    namespace.api.wait(lambda: not namespace.results("mine"), "the claim is free again")
    assert status_entries(namespace, "mine") == [], "the API server removes both in one write"
    assert_never(lambda: status_entries(namespace, "mine"), 2.0)


def test_missing_status_permission_is_logged_once(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", "dgx-h100", "--claim-status", "all", user="node:node-a")
    for name in ("one", "two"):
        namespace.claim(name, request("gpu", "gpu"))
        namespace.pod(name, claim=name, node="node-a")
    namespace.running("one", "two")
    agent.wait_for_log("claim status is not written")
    assert_never(lambda: status_entries(namespace, "one"), 3.0)
    assert agent.read_log().count("claim status is not written") == 1
    assert "resourceclaims/status" in agent.read_log()


def test_unpreparable_claim_has_an_event_with_the_reason(start_agent: StartAgent, namespace: Namespace) -> None:
    start_agent("node-a", "dgx-h100", "--claim-status", "all")
    parameters = {"apiVersion": "config.dra-agent.internal/v1", "kind": "NoSuchKind"}
    namespace.claim("wrong", request("gpu", "gpu"), config=[opaque(DRIVER, parameters, "gpu")])
    namespace.pod("user", claim="wrong", node="node-a")
    messages: list[str] = []

    def seen() -> bool:
        messages[:] = namespace.events("wrong")
        return any(event.startswith("PrepareFailed: ") and "NoSuchKind" in event for event in messages)

    namespace.api.wait(seen, "the claim has an Event with the reason")
    assert namespace.cluster.kubectl("describe", "resourceclaim", "wrong", "-n", namespace.name).count("NoSuchKind")


def test_repeated_events_are_counted_in_one_series(cluster: Cluster, namespace: Namespace) -> None:
    namespace.claim("mine", request("gpu", "gpu"))
    claim = namespace.get_claim("mine")
    subject = ObjectReference.claim(namespace.name, "mine", claim["metadata"]["uid"])
    node = ObjectReference.node("node-a")
    kubeconfig = cluster.identity().kubeconfig("node-a")

    def counts() -> dict[str, int]:
        events = namespace.api.list(EVENTS, namespace.name, fields={"involvedObject.name": "mine"})
        return {event["reason"]: event.get("series", {}).get("count", 1) for event in events}

    async def scenario() -> None:
        async with connect(kubeconfig) as api:
            recorder = EventRecorder(api, DRIVER, "node-a", repeat=0.0)
            recorder.start()
            recorder.record(SECOND_MANAGER, node, namespace.name)
            for count in range(1, 4):
                recorder.record(DEVICE_HELD, subject, "gpu-0 is held")
                async with asyncio.timeout(LONG_TIMEOUT_S):
                    while await asyncio.to_thread(counts) != {"DeviceHeld": count}:
                        await asyncio.sleep(0.05)
            # The API server deletes Events after an hour; a later repetition creates a new one.
            for event in await asyncio.to_thread(namespace.api.list, EVENTS, namespace.name):
                await asyncio.to_thread(namespace.api.delete, EVENTS, event["metadata"]["name"], namespace.name)
            recorder.record(DEVICE_HELD, subject, "gpu-0 is held")
            async with asyncio.timeout(LONG_TIMEOUT_S):
                while await asyncio.to_thread(counts) != {"DeviceHeld": 4}:
                    await asyncio.sleep(0.05)
            await recorder.stop()

    asyncio.run(scenario())
    assert namespace.name in cluster.kubectl("describe", "node", "node-a"), "`kubectl describe node` shows it"


def test_lost_device_of_a_claim_has_an_event(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", "dgx-h100", "--claim-status", "all")
    namespace.claim("mine", request("gpu", "gpu"))
    namespace.pod("user", claim="mine", node="node-a")
    namespace.running("user")
    device = namespace.results("mine")[0]["device"]
    agent.simulate("unplug", agent.devices()[device]["attributes"]["resource.kubernetes.io/pciBusID"]["string"])
    namespace.api.wait(
        lambda: any(event.startswith(f"DeviceLost: device {device} ") for event in namespace.events("mine")),
        "the claim has the Event",
    )
