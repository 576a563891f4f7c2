"""`dra-agent claims` on a cluster node and for a whole cluster; standalone mode is tested with its agent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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
    """A node with two prepared claims and a third one in progress."""
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


def test_ledger_is_listed_while_the_agent_runs(run: Run, node: JournalLedger) -> None:
    code, text, errors = run()
    assert code == 0
    assert "whether devices of claims can be used is not known: " in errors and "no agent is running here" in errors
    lines = [line.split() for line in text.splitlines() if "gpu-" in line]
    assert [(line[0], line[1], line[3]) for line in lines] == [
        ("gpu-2", "team-a/late", "being"),
        ("gpu-1", "team-a/serving", "prepared"),
        ("gpu-0", "team-a/training", "prepared"),
    ]
    assert "USED BY" not in text and "id-training" in text
    assert node.release("uid-late"), "the agent's ledger is unchanged and writable"


def test_pods_are_listed_from_the_api_server(run: Run, node: JournalLedger, fake_api: FakeApi, tmp_path: Path) -> None:
    put_claim(fake_api, "training", "n1", "gpu-0", "train-0", "train-1")
    put_claim(fake_api, "serving", "n1", "gpu-1", uid="another")
    kubeconfig = str(fake_api.kubeconfig(tmp_path / "kubeconfig"))
    code, printed, _ = run("--kubeconfig", kubeconfig, "-o", "json")
    used_by = {row["claim"]: row["used_by"] for row in json.loads(printed)}
    assert code == 0 and used_by == {
        "training": ["pod train-0", "pod train-1"],
        "serving": ["none: the API server has another claim of this name"],
        "late": ["none: the claim was deleted from the API server"],
    }
    assert {request.method for request in fake_api.requests} == {"GET"}
    assert not [request for request in fake_api.requests if request.path.endswith("/resourceclaims")], (
        "a node may not list claims"
    )
    assert "pod train-0" in run("--kubeconfig", kubeconfig)[1]


def test_an_unreadable_claim_does_not_hide_the_others(
    run: Run, node: JournalLedger, fake_api: FakeApi, tmp_path: Path
) -> None:
    put_claim(fake_api, "training", "n1", "gpu-0", "train-0")
    fake_api.fail(403, path="/serving", times=None)
    kubeconfig = str(fake_api.kubeconfig(tmp_path / "kubeconfig"))
    used_by = {row["claim"]: row["used_by"] for row in json.loads(run("--kubeconfig", kubeconfig, "-o", "json")[1])}
    assert used_by["training"] == ["pod train-0"] and used_by["serving"][0].startswith("not known: ")


def test_all_nodes_use_a_single_list_request(run: Run, fake_api: FakeApi, tmp_path: Path) -> None:
    condition = {"type": "Ready", "status": "False", "reason": "Unhealthy", "message": "XID 79"}
    entry = {"driver": DRIVER, "pool": "n2/gpu", "device": "gpu-0", "conditions": [condition]}
    put_claim(fake_api, "b", "n2", "gpu-0", "pod-b", devices=[entry])
    put_claim(fake_api, "a", "n1", "gpu-0")
    fake_api.put("resourceclaims", {"metadata": {"name": "pending", "namespace": "team-a"}, "spec": {}})
    kubeconfig = str(fake_api.kubeconfig(tmp_path / "kubeconfig"))
    code, text, _ = run("--all-nodes", "--kubeconfig", kubeconfig)
    rows = [line.split() for line in text.splitlines() if "gpu-0" in line]
    assert code == 0 and [row[0] for row in rows] == ["n1", "n2"]
    assert "none" in rows[0] and "no: XID 79" in text and "pending" not in text
    held = json.loads(run("--all-nodes", "--kubeconfig", kubeconfig, "-o", "json")[1])
    assert [(row["node"], row["claim"], row["used_by"], row["ready"]) for row in held] == [
        ("n1", "a", [], None),
        ("n2", "b", ["pod pod-b"], False),
    ]
    assert run("--all-nodes", "--kubeconfig", kubeconfig, "-n", "other", "-o", "json")[1].strip() == "[]"


def test_all_nodes_without_a_cluster_is_a_usage_error(run: Run) -> None:
    code, _, errors = run("--all-nodes")
    assert code == 2 and "kubeconfig" in errors


def test_ledger_is_readable_while_it_is_written(
    tmp_path: Path, node: JournalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    # No agent writes without a pause, and this writer can replace a journal during each of a few attempts.
    monkeypatch.setattr("dra_agent.prepare.ledger_reader.MAX_TRIES", 1000)
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
            copied = read_copy(tmp_path / "state")
            assert copied is not None
            assert {"uid-training", "uid-serving"} <= {entry.uid for entry in copied[0]}
    finally:
        stop.set()
        writer.join()


def test_a_listing_during_a_replacement_is_repeated(
    tmp_path: Path, node: JournalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """readdir may show neither a journal that was removed nor the snapshot that replaced it."""
    listings = 0
    iterdir = Path.iterdir

    def changing(directory: Path) -> Iterator[Path]:
        nonlocal listings
        listings += 1
        return iter(()) if listings == 1 else iterdir(directory)

    monkeypatch.setattr(Path, "iterdir", changing)
    copied = read_copy(tmp_path / "state")
    assert copied is not None
    assert {entry.uid for entry in copied[0]} == {"uid-training", "uid-serving", "uid-late"}


def test_a_missing_ledger_has_no_copy(tmp_path: Path) -> None:
    assert read_copy(tmp_path) is None
