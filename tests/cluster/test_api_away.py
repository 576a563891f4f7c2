"""The API server is away for a minute, or answers everything with an error, while pods start and stop."""

from __future__ import annotations

import time

from cluster.kube.agent import Agent
from cluster.kube.api import CLAIMS
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request
from cluster.test_slices import calm

HARDWARE = {"node-a": "dgx-h100", "node-b": "dgx-h100"}
AWAY = 60.0
COMPLAINTS_S = 60.0
"""Between two complaints of the agent about one kind of trouble, at least."""

Agents = dict[str, Agent]


def prepared(agents: Agents) -> int:
    """The claims that hold devices, as the agents count them."""
    total = 0
    for agent in agents.values():
        text = agent.get("/metrics")[1]
        (line,) = (line for line in text.splitlines() if line.startswith("dra_agent_prepared_claims "))
        total += int(float(line.split()[1]))
    return total


def test_api_server_away_for_60_seconds_while_pods_start_and_stop(
    cluster: Cluster, agents: Agents, namespace: Namespace
) -> None:
    plane = cluster.control_plane
    namespace.template("one-gpu", request("gpu", "gpu"))
    stay, leave, come = ([f"{word}-{n}" for n in range(3)] for word in ("stay", "leave", "come"))
    for pod in stay + leave:
        namespace.pod(pod, template="one-gpu")
    namespace.running(*stay, *leave)
    devices = {pod: namespace.environment(pod)["DRA_AGENT_REQUEST_GPU"] for pod in stay}
    slices = {name: agent.slices() for name, agent in agents.items()}

    for pod in come:
        namespace.pod(pod, template="one-gpu")
    for pod in leave:
        namespace.delete_pod(pod)
    plane.apiserver.kill()
    away = time.monotonic()

    agent = agents["node-a"]
    free = "gpu-0000-df-00-0"  # the last of its pool, which the scheduler gives out last
    agent.simulate("unplug", "0000:df:00.0")
    while time.monotonic() - away < AWAY:
        for one in agents.values():
            one.process.alive()
            assert one.get("/healthz")[0] == 200
        time.sleep(2)
    for one in agents.values():
        one.wait_for_log("warning slices cannot be followed")
    plane.apiserver.start()
    plane.ready()
    back = time.monotonic()

    until(lambda: free not in agent.devices(), "the unplugged device is not published any more")
    print(f"\nslices followed {time.monotonic() - back:.1f} s after the API server was back")
    namespace.running(*stay, *come)
    namespace.gone(*leave)
    print(f"pods as they should be after {time.monotonic() - back:.1f} s")
    assert {pod: namespace.environment(pod)["DRA_AGENT_REQUEST_GPU"] for pod in stay} == devices
    given = [namespace.results(namespace.claim_of(pod))[0] for pod in stay + come]
    assert len({(one["pool"], one["device"]) for one in given}) == len(given), "no device has two holders"
    until(lambda: len(namespace.api.list(CLAIMS, namespace.name)) == 6, "the leavers' claims are gone")
    until(lambda: prepared(agents) == 6, "nothing else is prepared")

    def uids(found: list[dict[str, dict[str, str]]]) -> set[str]:
        return {item["metadata"]["uid"] for item in found}

    for name, one in agents.items():
        assert uids(one.slices()) == uids(slices[name]), "nothing was deleted or created"
        warned = [line for line in one.said().splitlines() if " warning slices cannot be" in line]
        # Slices and each of two pools complain at once, and of a trouble in other words once a minute.
        most = 5 + 3 * (time.monotonic() - away) // COMPLAINTS_S
        assert len(warned) <= most, "\n".join(warned)
        assert "Traceback" not in one.said()
    agent.simulate("replug", "0000:df:00.0")
    until(lambda: free in agent.devices(), "the device is back")


def test_an_idle_agent_asks_for_next_to_nothing(cluster: Cluster, agents: Agents) -> None:
    """Counted by the API server itself, for a minute; what comes once in a few minutes is counted by the benchmark."""

    def asked() -> dict[str, float]:
        text = cluster.api.text("GET", "/metrics")
        found: dict[str, float] = {}
        for line in text.splitlines():
            if line.startswith("apiserver_request_total{") and 'resource="resourceslices"' in line:
                verb = line.split('verb="')[1].split('"')[0]
                found[verb] = found.get(verb, 0) + float(line.rsplit(" ", 1)[1])
        return found

    for agent in agents.values():
        calm(agent)
    before = {name: agent.slices() for name, agent in agents.items()}
    first = asked()
    time.sleep(60)
    second = asked()
    for verb in ("POST", "PUT", "PATCH", "APPLY", "DELETE"):
        assert second.get(verb, 0) == first.get(verb, 0), verb
    assert {name: agent.slices() for name, agent in agents.items()} == before
    for agent in agents.values():
        text = agent.get("/metrics")[1]
        assert "dra_agent_publish_pending_pools 0.0" in text
        assert "dra_agent_publish_behind_seconds 0.0" in text
