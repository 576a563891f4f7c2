"""`dra-agent claims` on a node of a cluster, and of a whole cluster; standalone mode is tested beside its agent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_agent.cli.main import main
from dra_agent.prepare.ledger import HeldDevice, JournalLedger, LedgerEntry
from dra_agent.prepare.ledger_reader import read_copy
from fake_apiserver.fake import FakeApi

Run = Callable[..., tuple[int, str, str]]
DRIVER = "dra-agent.internal"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["claims", "--state-dir", str(tmp_path / "state"), *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def node(tmp_path: Path) -> JournalLedger:
    """A node on which two claims are prepared and a third one is in work."""
    (tmp_path / "state").mkdir()
    ledger = JournalLedger(tmp_path / "state", "boot-1")
    for number, name in enumerate(("training", "serving", "late")):
        device = f"gpu-{number}"
        entry = LedgerEntry(f"uid-{name}", "team-a", name, (HeldDevice("n1/gpu", device, "gpu"),))
        record = {
            "devices": [{"pool": "n1/gpu", "device": device, "requests": ["gpu"], "cdi_device_ids": [f"id-{name}"]}]
        }
        ledger.start(LedgerEntry(entry.uid, entry.namespace, entry.name, entry.devices, payload=record), durable=True)
        if name != "late":
            ledger.complete(entry.uid, record)
    return ledger


def put_claim(api: FakeApi, name: str, node: str, device: str, *pods: str, uid: str = "", **more: Any) -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    results = [{"request": "gpu", "driver": DRIVER, "pool": f"{node}/gpu", "device": device}]
    status: dict[str, Any] = {
        "allocation": {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}},
        "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
        **more,
    }
    metadata = {"name": name, "namespace": "team-a", "uid": uid or f"uid-{name}"}
    api.put("resourceclaims", {"metadata": metadata, "spec": {}, "status": status})


def test_a_node_says_what_its_ledger_has_beside_a_running_agent(run: Run, node: JournalLedger) -> None:
    code, shown, _ = run()
    assert code == 0
    lines = [line.split() for line in shown.splitlines() if "gpu-" in line]
    assert [(line[0], line[1], line[3]) for line in lines] == [
        ("gpu-2", "team-a/late", "being"),
        ("gpu-1", "team-a/serving", "prepared"),
        ("gpu-0", "team-a/training", "prepared"),
    ]
    assert "USED BY" not in shown and "id-training" in shown
    assert node.release("uid-late"), "the agent's ledger is as it was, and can be written"


def test_the_api_server_says_which_pods_use_them(
    run: Run, node: JournalLedger, fake_api: FakeApi, tmp_path: Path
) -> None:
    put_claim(fake_api, "training", "n1", "gpu-0", "train-0", "train-1")
    put_claim(fake_api, "serving", "n1", "gpu-1", uid="another")
    kubeconfig = str(fake_api.kubeconfig(tmp_path / "kubeconfig"))
    code, printed, _ = run("--kubeconfig", kubeconfig, "-o", "json")
    used = {row["claim"]: row["used_by"] for row in json.loads(printed)}
    assert code == 0 and used == {
        "training": ["pod train-0", "pod train-1"],
        "serving": ["none: the API server has another claim of this name"],
        "late": ["none: the claim was deleted from the API server"],
    }
    assert {seen.method for seen in fake_api.requests} == {"GET"}
    assert not [seen for seen in fake_api.requests if seen.path.endswith("/resourceclaims")], "a node may list none"
    assert "pod train-0" in run("--kubeconfig", kubeconfig)[1]


def test_a_claim_that_may_not_be_read_does_not_hide_the_others(
    run: Run, node: JournalLedger, fake_api: FakeApi, tmp_path: Path
) -> None:
    put_claim(fake_api, "training", "n1", "gpu-0", "train-0")
    fake_api.fail(403, path="/serving", times=None)
    kubeconfig = str(fake_api.kubeconfig(tmp_path / "kubeconfig"))
    used = {row["claim"]: row["used_by"] for row in json.loads(run("--kubeconfig", kubeconfig, "-o", "json")[1])}
    assert used["training"] == ["pod train-0"] and used["serving"][0].startswith("not known: ")


def test_all_nodes_are_asked_for_in_one_list(run: Run, fake_api: FakeApi, tmp_path: Path) -> None:
    ill = {"type": "Ready", "status": "False", "reason": "Unhealthy", "message": "XID 79"}
    entry = {"driver": DRIVER, "pool": "n2/gpu", "device": "gpu-0", "conditions": [ill]}
    put_claim(fake_api, "b", "n2", "gpu-0", "pod-b", devices=[entry])
    put_claim(fake_api, "a", "n1", "gpu-0")
    fake_api.put("resourceclaims", {"metadata": {"name": "pending", "namespace": "team-a"}, "spec": {}})
    kubeconfig = str(fake_api.kubeconfig(tmp_path / "kubeconfig"))
    code, shown, _ = run("--all-nodes", "--kubeconfig", kubeconfig)
    rows = [line.split() for line in shown.splitlines() if "gpu-0" in line]
    assert code == 0 and [row[0] for row in rows] == ["n1", "n2"]
    assert "none" in rows[0] and "no: XID 79" in shown and "pending" not in shown
    held = json.loads(run("--all-nodes", "--kubeconfig", kubeconfig, "-o", "json")[1])
    assert [(row["node"], row["claim"], row["used_by"], row["ready"]) for row in held] == [
        ("n1", "a", [], None),
        ("n2", "b", ["pod pod-b"], False),
    ]
    assert run("--all-nodes", "--kubeconfig", kubeconfig, "-n", "other", "-o", "json")[1].strip() == "[]"


def test_all_nodes_without_a_cluster_is_wrong_use(run: Run) -> None:
    code, _, said = run("--all-nodes")
    assert code == 2 and "kubeconfig" in said


def test_a_ledger_is_read_while_it_is_written(
    tmp_path: Path, node: JournalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    # No agent writes without a pause, and this one may replace a journal in each of a few tries.
    monkeypatch.setattr("dra_agent.prepare.ledger_reader.TRIES", 1000)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            uid = f"w-{number}"
            node.start(LedgerEntry(uid, "n", "w", (HeldDevice("n1/gpu", f"x-{number}", "gpu"),)), durable=False)
            node.complete(uid, {"devices": []})
            node.release(uid)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            read = read_copy(tmp_path / "state")
            assert read is not None
            assert {"uid-training", "uid-serving"} <= {entry.uid for entry in read[0]}
    finally:
        stop.set()
        writer.join()


def test_where_no_ledger_is_there_is_no_copy(tmp_path: Path) -> None:
    assert read_copy(tmp_path) is None
