"""Memory of claims that share a GPU: by the pods of their cgroups, or unknown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.host import Host
from dra_agent.inventory.api import Attribute, Capacity
from dra_agent.inventory.model import Device, Inventory
from dra_agent.metrics.registry import Metrics
from dra_agent.metrics.snapshot import MetricsSnapshot
from dra_agent.metrics.telemetry import TelemetryMetrics
from dra_agent.prepare.ledger import HeldDevice, LedgerEntry
from dra_agent.prepare.record import ClaimRecord
from dra_agent.telemetry.accounting import TelemetryFailure
from dra_agent.telemetry.claim_pods import MAX_CLAIMS, ClaimPods
from dra_agent.telemetry.control import current_values
from dra_agent.telemetry.device_reads import DeviceReads
from dra_agent.telemetry.model import DeviceSample
from dra_agent.telemetry.sampler import TelemetrySnapshot
from dra_agent.telemetry.shares import MemoryByClaim, ShareReader
from eventually import eventually

GPU = "gpu-0000-1b-00-0"
REGION = "drm/0000:1b:00.0/vram0"
PODS = {
    "a": "1b4e28ba-2fa1-11d2-883f-0016d3cca427",
    "b": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "late": "6ba7b811-9dad-11d1-80b4-00c04fd430c8",
}
INVENTORY = Inventory(
    devices=(
        Device(
            GPU,
            "gpu",
            "amd",
            "0000:1b:00.0",
            {"memoryEnforcement": Attribute.of("dmem")},
            {"memory": Capacity(value="80Gi")},
            allow_multiple_allocations=True,
            identity={"dmem": REGION},
        ),
    )
)


def entry(
    name: str, *shares: str, state: str = "completed", admin: bool = False, allocated: str = "4Gi"
) -> LedgerEntry:
    devices = tuple(
        ClaimDevice("n/gpu", GPU, ("gpu",), share, admin, {} if admin else {"memory": allocated}) for share in shares
    )
    held = tuple(HeldDevice("n/gpu", GPU, "gpu", share, admin_access=admin, shared=True) for share in shares)
    payload = msgspec.to_builtins(ClaimRecord(devices))
    return LedgerEntry(f"uid-{name}", "team", name, held, state, payload)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("dmem\n")
    (tmp_path / "proc").mkdir()
    return tmp_path


def use(tree: Path, pod: str, amount: int) -> None:
    """Let a process of a pod use memory of the GPU."""
    uid = PODS[pod].replace("-", "_")
    cgroup = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice/cri-containerd-a.scope"
    counter = tree / "sys/fs/cgroup" / cgroup / "dmem.current"
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.write_text(f"{REGION} {amount}\n")
    process = tree / "proc" / str(100 + len(list((tree / "proc").iterdir())))
    process.mkdir()
    (process / "cgroup").write_text(f"0::/{cgroup}\n")


def memory(tree: Path, *entries: LedgerEntry, standalone: bool = False, **pods: str) -> dict[str, int | None]:
    """Return the memory by claim; `pods` names the pod of each claim."""
    uids = {f"uid-{claim}": frozenset({PODS[pod]}) for claim, pod in pods.items()}
    reader = ShareReader(
        Host(tree / "sys", tree / "dev", tree / "proc"), tree / "state", lambda: uids, standalone=standalone
    )
    found = reader.read(entries, INVENTORY, {}, {}, [])
    return {claim.name: sample.memory_used_bytes for (claim, _), sample in found.items()}


def test_each_claim_has_the_memory_of_its_own_pods(tree: Path) -> None:
    use(tree, "a", 100)
    use(tree, "b", 20)
    entries = entry("train", "share-1"), entry("other", "share-2")
    assert memory(tree, *entries, train="a", other="b") == {"train": 100, "other": 20}


def test_a_counter_that_hangs_is_left_behind_until_it_returns(tree: Path) -> None:
    use(tree, "a", 100)
    (counter,) = (tree / "sys/fs/cgroup").rglob("dmem.current")
    content = counter.read_bytes()
    counter.unlink()
    os.mkfifo(counter)  # to open it for reading waits for a writer
    threads = DaemonExecutor(1, "test")
    failures: list[TelemetryFailure] = []

    def read() -> int | None:
        failures.clear()
        found = reader.read([entry("train", "share-1")], INVENTORY, {}, {}, failures)
        return next((sample.memory_used_bytes for sample in found.values()), None)

    reads: DeviceReads[MemoryByClaim] = DeviceReads(threads, 0.5, "memory by claim")
    host = Host(tree / "sys", tree / "dev", tree / "proc")
    pods = {"uid-train": frozenset({PODS["a"]})}
    reader = ShareReader(host, tree / "state", lambda: pods, standalone=False, memory=reads)
    try:
        assert read() is None
        late = "no response about its memory by claim within 0.5 s"
        assert failures == [TelemetryFailure("processes", GPU, late)]
        assert read() is None
        assert failures == [
            TelemetryFailure("processes", GPU, "an earlier read of its memory by claim has not returned")
        ]
        with counter.open("r+b", buffering=0) as writer:
            counter.unlink()
            counter.write_bytes(content)
            writer.write(content)
        eventually(lambda: read() == 100)
        assert failures == []
    finally:
        threads.shutdown()


def test_a_pod_that_joined_later_leaves_all_claims_unknown(tree: Path) -> None:
    use(tree, "a", 100)
    use(tree, "late", 1)
    entries = entry("train", "share-1"), entry("other", "share-2")
    assert memory(tree, *entries, train="a", other="b") == {}


def test_claims_without_known_pods_are_unknown(tree: Path) -> None:
    use(tree, "a", 100)
    assert memory(tree, entry("train", "share-1")) == {}
    assert memory(tree, entry("train", "share-1"), entry("other", "share-2"), train="a") == {}


def test_two_shares_of_one_claim_are_not_distinguished(tree: Path) -> None:
    use(tree, "a", 100)
    assert memory(tree, entry("train", "share-1", "share-2"), train="a") == {}


def test_claims_that_are_not_prepared_and_admin_access_have_no_memory(tree: Path) -> None:
    use(tree, "a", 100)
    entries = (
        entry("train", "share-1"),
        entry("starting", "share-2", state="started"),
        entry("monitor", "x", admin=True),
    )
    assert memory(tree, *entries, train="a", starting="b", monitor="late") == {"train": 100}


def test_processes_that_are_hidden_leave_all_claims_unknown(tree: Path) -> None:
    use(tree, "a", 100)
    (tree / "proc/self/ns").mkdir(parents=True)
    (tree / "proc/self/ns/pid").symlink_to("pid:[4026532201]")
    assert memory(tree, entry("train", "share-1"), train="a") == {}


def test_a_claim_that_holds_its_device_alone_is_not_counted_here(tree: Path) -> None:
    reader = ShareReader(Host(tree / "sys", tree / "dev", tree / "proc"), tree, dict, standalone=True)
    assert reader.read([entry("train", "share-1")], INVENTORY, {GPU: ClaimRef("u", "n", "c")}, {}, []) == {}


def snapshot(*claims: tuple[str, str, int]) -> TelemetrySnapshot:
    shares = {
        (ClaimRef(uid, "team", name), GPU): DeviceSample(memory_used_bytes=amount) for uid, name, amount in claims
    }
    return TelemetrySnapshot({GPU: DeviceSample(power_watts=300.0)}, {}, shares)


def series(shown: TelemetrySnapshot, *held: str) -> list[str]:
    metrics = Metrics(MetricsSnapshot)
    metrics.add(TelemetryMetrics(lambda: shown, lambda: INVENTORY, "n", lambda: set(held), claim_labels=True))
    return [line for line in metrics.render()[0].decode().splitlines() if line.startswith("dra_agent_claim_")]


def test_the_series_of_a_share_is_its_memory_alone() -> None:
    shown = snapshot(("uid-train", "train", 100), ("uid-other", "other", 20))
    labels = f'{{claim="train",device="{GPU}",namespace="team"}}'
    assert series(shown, "uid-train") == [f"dra_agent_claim_memory_used_bytes{labels} 100.0"]
    # Two claims of one name: the older one ends.
    assert series(snapshot(("uid-1", "train", 100), ("uid-2", "train", 20)), "uid-1", "uid-2") == []


def test_top_has_the_memory_of_shares() -> None:
    entries = [entry("train", "share-1"), entry("other", "share-2")]
    current = current_values("n", 10, 0, snapshot(("uid-train", "train", 100)), INVENTORY, entries)
    values: dict[str, Any] = {one.name: msgspec.to_builtins(one.values) for one in current.claims}
    assert values == {"train": {"memory_used_bytes": 100}, "other": {}}


def test_uids_of_pods_are_those_of_claims_for_pods_alone() -> None:
    def seen(name: str, *users: dict[str, Any]) -> dict[str, Any]:
        metadata = {"uid": f"uid-{name}", "namespace": "team", "name": name}
        return {"metadata": metadata, "status": {"reservedFor": list(users)}}

    pods = ClaimPods()
    pod = {"resource": "pods", "name": "p", "uid": "1"}
    pods.seen(seen("train", pod))
    pods.seen(seen("group", pod, {"resource": "podgroups", "apiGroup": "x", "name": "g", "uid": "2"}))
    pods.seen(seen("nobody"))
    assert pods.uids() == {"uid-train": frozenset({"1"})}
    pods.seen(seen("train", {"resource": "jobs", "name": "j", "uid": "3"}))
    assert pods.uids() == {}
    for number in range(MAX_CLAIMS + 1):
        pods.seen(seen(f"claim-{number}", pod))
    assert len(pods.uids()) == MAX_CLAIMS
