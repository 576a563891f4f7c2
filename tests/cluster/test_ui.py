"""The page of a cluster, `dra-agent ui --kubeconfig`: nodes by devices, claims that wait, and a reclaim."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.kube.agent import Agent
from cluster.kube.cluster import Cluster
from cluster.kube.drain_probe import announce, cancel
from cluster.kube.process import LONG_TIMEOUT_S, Process, until
from cluster.kube.workload import Namespace, request
from page import chromium

HARDWARE = {"node-a": "dgx-h100", "node-b": "l40s"}

UNTIL_END = "trap '' TERM; while [ ! -e /end ]; do sleep 0.2; done"
"""The shell command of a pod that ends when the file exists, and not on SIGTERM."""

Agents = dict[str, Agent]
ReadPage = Callable[[], dict[str, str]]


@pytest.fixture
def address(cluster: Cluster, agents: Agents, tmp_path: Path) -> Iterator[str]:
    """The address of the page of the cluster."""
    state_dir = agents["node-a"].state_dir
    command = [sys.executable, "-m", "dra_agent", "ui", "--port", "0"]
    command += ["--kubeconfig", str(cluster.kubeconfig), "--state-dir", str(state_dir)]
    process = Process("ui", command, tmp_path / "ui.log", cluster.directory)
    process.start()
    printed = re.compile(r"^(http://\S+)$", re.MULTILINE)
    until(lambda: printed.search(process.read_log()), "the command prints the address")
    found = printed.search(process.read_log())
    assert found
    yield found[1].rstrip("/") + "/cluster"
    assert process.end() == 0, process.tail()


@pytest.fixture
def sections(address: str) -> ReadPage:
    """Read the texts of the page: of `summary`, and of each section by its id, with `|` between two cells."""

    def read() -> dict[str, str]:
        with urllib.request.urlopen(address, timeout=LONG_TIMEOUT_S) as response:
            text = response.read().decode()
        summary = re.search(r'<p id="summary"[^>]*>(.*?)</p>', text, re.DOTALL)
        found = dict(re.findall(r'<section[^>]*\bid="(\w+)"[^>]*>(.*?)</section>', text, re.DOTALL))
        return {key: _words(value) for key, value in {**found, "summary": summary[1] if summary else ""}.items()}

    return read


def _words(text: str) -> str:
    cells = re.sub(r"</t[dh]>", " | ", text)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", cells)).split())


def test_nodes_and_a_pending_claim(
    agents: Agents,
    namespace: Namespace,
    sections: ReadPage,
    agent_command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    namespace.claim("held", request("gpus", "gpu", count=3))
    namespace.pod("user", claim="held", node="node-a")
    namespace.running("user")
    namespace.claim("late", request("gpus", "gpu", count=9))
    namespace.pod("waits", claim="late")
    namespace.wait_for_scheduling_failure("waits", "cannot allocate all claims")

    devices = {node: len(agent.devices()) for node, agent in agents.items()}
    namespace.api.wait(lambda: f"3 of {devices['node-a']}" in sections()["nodes"], "the page shows the held devices")
    found = sections()
    assert re.search(rf"node-a \| 8 gpu, [^|]*\| 3 of {devices['node-a']} \| 0 \| none", found["nodes"])
    assert re.search(rf"node-b \| 4 gpu, [^|]*\| 0 of {devices['node-b']} \| 0 \| none", found["nodes"])
    assert found["summary"].startswith(f"2 nodes, {sum(devices.values())} devices: 3 held, 0 tainted. 1 claim pending.")
    where = ("-n", namespace.name, "--kubeconfig", str(namespace.cluster.kubeconfig))
    explained = json.loads(agent_command("explain", "claim/late", *where, "-o", "json", check=False).stdout)["summary"]
    assert "fits on none of 2 nodes" in explained
    assert f"{namespace.name}/late | " in found["pending"] and explained in found["pending"]
    assert "No node is being reclaimed." in found["reclaims"]


@pytest.fixture
def reclaimed(agents: Agents, namespace: Namespace) -> Iterator[Agent]:
    """Node-a with a claim whose pod does not end, and a notice."""
    namespace.claim("held", request("gpus", "gpu", count=2))
    namespace.pod("user", claim="held", node="node-a", command=UNTIL_END, terminationGracePeriodSeconds=3600)
    namespace.running("user")
    announce(agents["node-a"], 3600)
    yield agents["node-a"]
    namespace.execute("user", "touch /end")
    namespace.wait_until_deleted("user")
    cancel(agents["node-a"])


def test_a_reclaim_in_progress(reclaimed: Agent, namespace: Namespace, sections: ReadPage, address: str) -> None:
    total = len(reclaimed.devices())
    shown = {
        "reclaims": rf"node-a \| notice \| {namespace.name}/held \| [^|]*reclaimed",
        "nodes": rf"node-a \| [^|]* \| 2 of {total} \| ⚠ {total} \| ⚠ notice .*node-b \| [^|]* \| 0 of \d+ \| 0 ",
    }

    def is_shown() -> bool:
        found = sections()
        assert all(re.search(pattern, found[key]) for key, pattern in shown.items()), found
        return True

    namespace.api.wait(is_shown, "the page shows the reclaim, its claim and the tainted devices")
    found = sections()
    assert "1 node being reclaimed." in found["summary"]


@pytest.mark.skipif(chromium.CHROMIUM is None, reason="no Chromium is installed (package chromium-headless-shell)")
def test_a_browser_shows_a_claim_that_is_created_while_the_page_is_open(
    agents: Agents, namespace: Namespace, address: str, tmp_path: Path
) -> None:
    """Without a reload: the script of the page fetches new values."""
    with chromium.Chromium(tmp_path / "profile") as browser:
        page = browser.open(address)
        page.eventually('document.querySelector("#node-table")?.textContent.includes("node-b")')
        namespace.claim("late", request("gpus", "gpu", count=9))
        namespace.pod("waits", claim="late")
        text = f"{namespace.name}/late"

        def shown() -> bool:
            return bool(page.value(f'document.querySelector("#pending").textContent.includes("{text}")'))

        until(shown, "the open page shows the claim")
        assert page.complaints() == []
