"""The API server is down for a minute while pods start and stop, and an idle agent sends few requests."""

from __future__ import annotations

import time

from cluster.kube.agent import Agent
from cluster.kube.api import CLAIMS
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request
from cluster.test_slices import wait_until_idle

HARDWARE = {"node-a": "dgx-h100", "node-b": "dgx-h100"}
DOWN_S = 60.0
WARNING_INTERVAL_S = 60.0
"""Minimum interval between two warnings of the agent about one kind of problem."""

Agents = dict[str, Agent]


def prepared(agents: Agents) -> int:
    """Return the number of prepared claims that the agents report."""
    total = 0
    for agent in agents.values():
        text = agent.get("/metrics")[1]
        (line,) = (line for line in text.splitlines() if line.startswith("dra_agent_prepared_claims "))
        total += int(float(line.split()[1]))
    return total


def test_pods_start_and_stop_while_apiserver_is_down_60s(
    cluster: Cluster, agents: Agents, namespace: Namespace
) -> None:
    plane = cluster.control_plane
    namespace.template("one-gpu", request("gpu", "gpu"))
    staying, leaving, starting = ([f"{word}-{n}" for n in range(3)] for word in ("stay", "leave", "come"))
    for pod in staying + leaving:
        namespace.pod(pod, template="one-gpu")
    namespace.running(*staying, *leaving)
    devices = {pod: namespace.environment(pod)["DRA_AGENT_REQUEST_GPU"] for pod in staying}
    slices = {name: agent.slices() for name, agent in agents.items()}

    for pod in starting:
        namespace.pod(pod, template="one-gpu")
    for pod in leaving:
        namespace.delete_pod(pod)
    plane.apiserver.kill()
    away = time.monotonic()

    agent = agents["node-a"]
    free = "gpu-0000-df-00-0"  # the last of its pool, which the scheduler allocates last
    agent.simulate("unplug", "0000:df:00.0")
    while time.monotonic() - away < DOWN_S:
        for one in agents.values():
            one.process.check_running()
            assert one.get("/healthz")[0] == 200
        time.sleep(2)
    for one in agents.values():
        one.wait_for_log("warning slices cannot be followed")
    plane.apiserver.start()
    plane.ready()
    back = time.monotonic()

    until(lambda: free not in agent.devices(), "the unplugged device is not published any more")
    print(f"\nslices followed {time.monotonic() - back:.1f} s after the API server was back")
    namespace.running(*staying, *starting)
    namespace.wait_until_deleted(*leaving)
    print(f"pods in their final state after {time.monotonic() - back:.1f} s")
    assert {pod: namespace.environment(pod)["DRA_AGENT_REQUEST_GPU"] for pod in staying} == devices
    results = [namespace.results(namespace.claim_of(pod))[0] for pod in staying + starting]
    assert len({(one["pool"], one["device"]) for one in results}) == len(results), "no device is allocated twice"
    until(lambda: len(namespace.api.list(CLAIMS, namespace.name)) == 6, "the claims of deleted pods are gone")
    until(lambda: prepared(agents) == 6, "nothing else is prepared")

    def uids(found: list[dict[str, dict[str, str]]]) -> set[str]:
        return {item["metadata"]["uid"] for item in found}

    for name, one in agents.items():
        assert uids(one.slices()) == uids(slices[name]), "nothing was deleted or created"
        warned = [line for line in one.read_log().splitlines() if " warning slices cannot be" in line]
        # Slices and each of two pools warn at once, and about a problem with another message once a minute.
        max_warnings = 5 + 3 * (time.monotonic() - away) // WARNING_INTERVAL_S
        assert len(warned) <= max_warnings, "\n".join(warned)
        assert "Traceback" not in one.read_log()
    agent.simulate("replug", "0000:df:00.0")
    until(lambda: free in agent.devices(), "the device is back")


def test_idle_agent_sends_almost_no_requests(cluster: Cluster, agents: Agents) -> None:
    """The API server counts requests for a minute; the benchmark counts those that are less frequent."""

    def requests_by_verb() -> dict[str, float]:
        text = cluster.api.text("GET", "/metrics")
        found: dict[str, float] = {}
        for line in text.splitlines():
            if line.startswith("apiserver_request_total{") and 'resource="resourceslices"' in line:
                verb = line.split('verb="')[1].split('"')[0]
                found[verb] = found.get(verb, 0) + float(line.rsplit(" ", 1)[1])
        return found

    for agent in agents.values():
        wait_until_idle(agent)
    before = {name: agent.slices() for name, agent in agents.items()}
    first = requests_by_verb()
    time.sleep(60)
    second = requests_by_verb()
    for verb in ("POST", "PUT", "PATCH", "APPLY", "DELETE"):
        assert second.get(verb, 0) == first.get(verb, 0), verb
    assert {name: agent.slices() for name, agent in agents.items()} == before
    for agent in agents.values():
        text = agent.get("/metrics")[1]
        assert "dra_agent_publish_pending_pools 0.0" in text
        assert "dra_agent_publish_behind_seconds 0.0" in text
