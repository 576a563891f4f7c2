"""What the agent tells of claims on a real API server: status.devices, Events, and who may write them."""

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
from cluster.kube.process import LONG
from cluster.kube.workload import Namespace, opaque, request
from dra_agent.kube_client import connect
from dra_agent.status import EventRecorder, ObjectReference
from dra_agent.status.events import DEVICE_HELD, SECOND_MANAGER

OTHER = "other.example.com"


def gpu(driver: str) -> str:
    return f'device.attributes["{driver}"].type == "gpu"'


def told(namespace: Namespace, claim: str, driver: str = DRIVER) -> list[Object]:
    """The driver's entries of status.devices."""
    devices = namespace.get_claim(claim)["status"].get("devices", [])
    return [entry for entry in devices if entry["driver"] == driver]


def ready(entry: Object) -> Object:
    found: list[Object] = entry["conditions"]
    (condition,) = (one for one in found if one["type"] == "Ready")
    return condition


def now() -> str:
    """As the API writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def managers(claim: Object) -> dict[str, Any]:
    return {entry["manager"]: entry for entry in claim["metadata"]["managedFields"]}


def never(condition: Callable[[], object], seconds: float) -> None:
    """Watch for a while that something does not happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not condition()
        time.sleep(0.1)


def test_a_claim_says_what_its_devices_are(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", "dgx-h100", "--claim-status", "all")
    namespace.claim("mine", request("gpu", "gpu"), request("nic", "rdma-nic"))
    namespace.pod("user", claim="mine", node="node-a")
    namespace.running("user")
    namespace.api.wait(lambda: len(told(namespace, "mine")) == 2, "the claim's status says so")
    entries = {entry["device"]: entry for entry in told(namespace, "mine")}
    results = {result["request"]: result["device"] for result in namespace.results("mine")}
    gpu, nic = entries[results["gpu"]], entries[results["nic"]]
    assert ready(gpu)["status"] == "True"
    published = agent.devices()[results["gpu"]]["attributes"]
    assert gpu["data"]["pciAddress"] == published["resource.kubernetes.io/pciBusID"]["string"]
    assert gpu["data"]["uuid"] == published["uuid"]["string"]
    assert gpu["data"]["productName"] == published["productName"]["string"]
    assert nic["networkData"]["interfaceName"] == agent.devices()[results["nic"]]["attributes"]["ifName"]["string"]
    assert nic["networkData"]["hardwareAddress"]
    claim = namespace.get_claim("mine")
    written = managers(claim)[DRIVER]
    assert (written["operation"], written["subresource"]) == ("Apply", "status")
    assert set(written["fieldsV1"]["f:status"]) == {"f:devices"}, "nothing else of the status is the agent's"


def test_it_stays_over_a_restart_and_is_not_written_again(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", "dgx-h100", "--claim-status", "all")
    namespace.claim("mine", request("gpu", "gpu"))
    namespace.pod("user", claim="mine", node="node-a")
    namespace.running("user")
    namespace.api.wait(lambda: told(namespace, "mine"), "the claim's status says so")
    before = namespace.get_claim("mine")
    agent.restart().ready()
    agent.kill()
    agent.start().ready()
    # It looks at held claims half a second after its start.
    never(lambda: namespace.get_claim("mine") != before, 3.0)


def test_another_drivers_entry_is_never_touched(start_agent: StartAgent, namespace: Namespace) -> None:
    # Both simulate hardware at the same addresses: told that this is wanted, they publish it all the same.
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
        namespace.api.wait(partial(told, namespace, "both", driver), f"{driver} has told")
    theirs = told(namespace, "both", OTHER)
    ours = told(namespace, "both")
    assert "H100" in ours[0]["data"]["productName"] and "L40S" in theirs[0]["data"]["productName"]
    agent.simulate("unplug", ours[0]["data"]["pciAddress"])
    # Its health is lost first where a look at it comes between: DeviceGone is the reason that stays.
    namespace.api.wait(lambda: ready(told(namespace, "both")[0])["reason"] == "DeviceGone", "the condition follows")
    assert ready(told(namespace, "both")[0])["status"] == "False"
    assert told(namespace, "both", OTHER) == theirs


def test_it_follows_the_devices_health(start_agent: StartAgent, namespace: Namespace, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    # An uncorrected memory error is told, and new claims are kept off; short times so that it recovers soon.
    config.write_text("[health]\nrecovery_seconds = 1\nevent_seconds = 30\n")
    agent = start_agent("node-a", "dgx-h100", "--claim-status", "all", "--config", str(config))
    namespace.claim("mine", request("gpu", "gpu"))
    namespace.pod("user", claim="mine", node="node-a")
    namespace.running("user")
    namespace.api.wait(lambda: told(namespace, "mine"), "the claim's status says so")
    (before,) = told(namespace, "mine")
    assert ready(before)["status"] == "True"
    # Its times are whole seconds.
    namespace.api.wait(lambda: now() > ready(before)["lastTransitionTime"], "the next second has begun")
    agent.simulate("xid", before["data"]["pciAddress"], "48")
    during: Object = {}

    def is_ill() -> bool:
        (entry,) = told(namespace, "mine")
        during.update(entry)
        return bool(ready(entry)["status"] == "False")

    namespace.api.wait(is_ill, "the condition follows")
    assert ready(during)["reason"] == "Unhealthy" and "XID 48" in ready(during)["message"]

    def said() -> set[str]:
        return {event.partition(":")[0] for event in namespace.events("mine")}

    namespace.api.wait(lambda: "DeviceUnhealthy" in said(), "an Event of the claim says so")
    namespace.api.wait(lambda: ready(told(namespace, "mine")[0])["status"] == "True", "it has recovered")
    namespace.api.wait(lambda: "DeviceHealthy" in said(), "an Event of the claim says so")
    assert ready(told(namespace, "mine")[0])["lastTransitionTime"] > ready(during)["lastTransitionTime"]
    assert ready(during)["lastTransitionTime"] > ready(before)["lastTransitionTime"]


def test_it_is_gone_after_deallocation(start_agent: StartAgent, namespace: Namespace) -> None:
    start_agent("node-a", "dgx-h100", "--claim-status", "all")
    namespace.claim("mine", request("gpu", "gpu"))
    namespace.pod("user", claim="mine", node="node-a")
    namespace.running("user")
    namespace.api.wait(lambda: told(namespace, "mine"), "the claim's status says so")
    namespace.delete_pod("user")
    namespace.gone("user")
    namespace.api.wait(lambda: not namespace.results("mine"), "the claim is free again")
    assert told(namespace, "mine") == [], "the API server takes both away in one write"
    never(lambda: told(namespace, "mine"), 2.0)


def test_a_kubelets_credentials_may_not_and_that_is_said_once(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", "dgx-h100", "--claim-status", "all", user="node:node-a")
    for name in ("one", "two"):
        namespace.claim(name, request("gpu", "gpu"))
        namespace.pod(name, claim=name, node="node-a")
    namespace.running("one", "two")
    agent.wait_for_log("claim status is not written")
    never(lambda: told(namespace, "one"), 3.0)
    assert agent.said().count("claim status is not written") == 1
    assert "resourceclaims/status" in agent.said()


def test_an_operator_sees_a_claim_that_can_never_be_prepared(start_agent: StartAgent, namespace: Namespace) -> None:
    start_agent("node-a", "dgx-h100", "--claim-status", "all")
    parameters = {"apiVersion": "config.dra-agent.internal/v1", "kind": "NoSuchKind"}
    namespace.claim("wrong", request("gpu", "gpu"), config=[opaque(DRIVER, parameters, "gpu")])
    namespace.pod("user", claim="wrong", node="node-a")
    said: list[str] = []

    def seen() -> bool:
        said[:] = namespace.events("wrong")
        return any(event.startswith("PrepareFailed: ") and "NoSuchKind" in event for event in said)

    namespace.api.wait(seen, "an Event of the claim says why")
    assert namespace.cluster.kubectl("describe", "resourceclaim", "wrong", "-n", namespace.name).count("NoSuchKind")


def test_what_repeats_is_counted_in_one_event(cluster: Cluster, namespace: Namespace) -> None:
    namespace.claim("mine", request("gpu", "gpu"))
    claim = namespace.get_claim("mine")
    subject = ObjectReference.claim(namespace.name, "mine", claim["metadata"]["uid"])
    node = ObjectReference.node("node-a")
    kubeconfig = cluster.identity().kubeconfig("node-a")

    def counts() -> dict[str, int]:
        events = namespace.api.list(EVENTS, namespace.name, fields={"involvedObject.name": "mine"})
        return {event["reason"]: event.get("series", {}).get("count", 1) for event in events}

    async def story() -> None:
        async with connect(kubeconfig) as api:
            recorder = EventRecorder(api, DRIVER, "node-a", repeat=0.0)
            recorder.start()
            recorder.record(SECOND_MANAGER, node, namespace.name)
            for count in range(1, 4):
                recorder.record(DEVICE_HELD, subject, "gpu-0 is held")
                async with asyncio.timeout(LONG):
                    while await asyncio.to_thread(counts) != {"DeviceHeld": count}:
                        await asyncio.sleep(0.05)
            # The API server throws Events away after an hour; what repeats after that is told anew.
            for event in await asyncio.to_thread(namespace.api.list, EVENTS, namespace.name):
                await asyncio.to_thread(namespace.api.delete, EVENTS, event["metadata"]["name"], namespace.name)
            recorder.record(DEVICE_HELD, subject, "gpu-0 is held")
            async with asyncio.timeout(LONG):
                while await asyncio.to_thread(counts) != {"DeviceHeld": 4}:
                    await asyncio.sleep(0.05)
            await recorder.stop()

    asyncio.run(story())
    assert namespace.name in cluster.kubectl("describe", "node", "node-a"), "people see it where they look"


def test_an_operator_sees_a_device_that_left_while_it_was_held(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", "dgx-h100", "--claim-status", "all")
    namespace.claim("mine", request("gpu", "gpu"))
    namespace.pod("user", claim="mine", node="node-a")
    namespace.running("user")
    device = namespace.results("mine")[0]["device"]
    agent.simulate("unplug", agent.devices()[device]["attributes"]["resource.kubernetes.io/pciBusID"]["string"])
    namespace.api.wait(
        lambda: any(event.startswith(f"DeviceLost: device {device} ") for event in namespace.events("mine")),
        "an Event of the claim says so",
    )
