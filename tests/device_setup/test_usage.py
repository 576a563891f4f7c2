from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import dra_simulate
from dra_agent.claim import ClaimDevice
from dra_agent.cli.main import main
from dra_agent.device_setup.open_files import SEARCH_TIMEOUT_S
from dra_agent.device_setup.shares.limiter import CgroupMemory, DriverLimit, ShareLimit, ShareLimitStore
from dra_agent.device_setup.shares.owners import HeldShare, ProcessOwners
from dra_agent.device_setup.shares.usage import Usage, UsageReader
from dra_agent.host import Host
from dra_agent.inventory.api import Attribute, Capacity
from dra_agent.inventory.model import Device
from dra_agent.inventory.nvidia.nvml_client import NvmlClient
from dra_agent.prepare import JournalLedger
from dra_agent.prepare.ledger import HeldDevice, LedgerEntry
from dra_agent.prepare.record import ClaimRecord
from dra_agent.processes.containers import Place
from dra_agent.processes.open_file import FileIdentity, identity_of
from dra_simulate import inject
from fake_apiserver.fake import FakeApi

GPU = "gpu-0000-1b-00-0"
MIB = 1 << 20
REGION = "drm/0000:1b:00.0/vram0"

Meter = Callable[..., UsageReader]


POD, OTHER_POD = "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


def held(
    claim: str = "default/train", *pods: str, share: str = "share-1", consumed: str | None = "4Gi", why: str = ""
) -> HeldShare:
    known = None if why else frozenset(pods or (POD,))
    return HeldShare("uid-" + claim.replace("/", "-"), claim, f"{GPU}/{share}", consumed, "n/gpu", known, why)


def gpu(enforcement: str | None, vendor: str = "nvidia", **identity: str) -> Device:
    return Device(
        GPU,
        "gpu",
        vendor,
        "0000:1b:00.0",
        {"memoryEnforcement": Attribute.of(enforcement)} if enforcement else {},
        {"memory": Capacity(value="80Gi")},
        allow_multiple_allocations=enforcement is not None,
        identity=identity,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("dmem\n")
    return tmp_path


def slice_of(pod: str, container: str = "a") -> str:
    """The cgroup of a container, as a kubelet and containerd with systemd's driver name it."""
    uid = pod.replace("-", "_")
    return f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice/cri-containerd-{container}.scope"


PODMAN = f"machine.slice/libpod-{'0123456789abcdef' * 4}.scope"


def process(tree: Path, pid: int, cgroup: str, claim: str = "default/train") -> None:
    folder = tree / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "environ").write_bytes(f"PATH=/bin\0DRA_AGENT_DEVICE_GPU_0000_1B_00_0={claim}/gpu\0".encode())
    (folder / "cgroup").write_text(f"0::/{cgroup}\n")


def charged(tree: Path, cgroup: str, amount: int) -> None:
    folder = tree / "sys/fs/cgroup" / cgroup
    folder.mkdir(parents=True)
    (folder / "dmem.current").write_text(f"drm/0000:99:00.0/vram0 7\n{REGION} {amount}\n")


@pytest.fixture
def meter() -> Iterator[Meter]:
    """Read the usage of shares on the host of a tree."""
    readers: list[UsageReader] = []

    def read(tree: Path, *everything: HeldShare, standalone: bool = False, is_sample: bool = False) -> UsageReader:
        host = Host(tree / "sys", tree / "dev", tree / "proc")
        owners = ProcessOwners(host, everything or (held(),), standalone=standalone, is_sample=is_sample)
        readers.append(UsageReader(host, tree / "state", 1.0, owners, is_sample=is_sample))
        return readers[-1]

    yield read
    for reader in readers:
        reader.close()


def amd() -> Device:
    return gpu("dmem", "amd", dmem=REGION)


def test_the_kernel_counts_by_the_cgroups_of_a_claims_pods(tree: Path, meter: Meter) -> None:
    for pid, (pod, container, amount) in enumerate(((POD, "a", 100), (POD, "b", 20), (OTHER_POD, "a", 3)), start=1):
        charged(tree, slice_of(pod, container), amount)
        process(tree, pid, slice_of(pod, container))
    process(tree, 8, slice_of(POD) + "/of-the-containers-own")
    (tree / "proc/net").mkdir()
    process(tree, 9, "system.slice/monitor.service")
    assert meter(tree).read(held(), amd()) == Usage(4 << 30, 120, "kernel, per cgroup", limit_for="container")


def test_an_environment_makes_no_process_a_claims(tree: Path, meter: Meter) -> None:
    """Each has the variable that the claim's CDI spec gives its containers."""
    charged(tree, slice_of(OTHER_POD), 3)
    process(tree, 1, slice_of(OTHER_POD), "default/train")
    other = held("default/other", OTHER_POD, share="share-2")
    reader = meter(tree, held(), other)
    assert [reader.read(one, amd()).used for one in (held(), other)] == [0, 3]


def test_a_pod_with_two_shares_of_one_gpu_is_counted_for_neither(tree: Path, meter: Meter) -> None:
    """A cgroup names the pod and the container, and not which of the pod's claims the container has."""
    charged(tree, slice_of(POD), 100)
    process(tree, 1, slice_of(POD))
    for second in (held("default/other", POD, share="share-2"), held(share="share-2")):
        reader = meter(tree, held(), second)
        for one in (held(), second):
            usage = reader.read(one, amd())
            assert usage.used is None and "several claims or requests" in (usage.note or "")


def test_a_claim_whose_pods_are_unknown_leaves_all_of_its_device_in_doubt(tree: Path, meter: Meter) -> None:
    charged(tree, slice_of(POD), 100)
    process(tree, 1, slice_of(POD))
    unknown = held("default/other", share="share-2", why="not asked")
    reader = meter(tree, held(), unknown)
    assert reader.read(held(), amd()).used is None
    assert (
        meter(tree, unknown).read(unknown, amd()).note == f"the owner of cgroup {slice_of(POD)} is not known: not asked"
    )


def test_without_kubernetes_the_only_claim_of_a_device_has_all_its_usage(tree: Path, meter: Meter) -> None:
    charged(tree, PODMAN, 100)
    process(tree, 1, PODMAN + "/container")
    process(tree, 2, "user.slice/user-1000.slice/session-1.scope")
    alone = held("default/train", why="none")
    assert meter(tree, alone, standalone=True).read(alone, amd()).used == 100
    second = held("default/other", share="share-2", why="none")
    assert meter(tree, alone, second, standalone=True).read(alone, amd()).used is None
    # On a node of a cluster it is a container whose pod is unknown.
    usage = meter(tree).read(held(), amd())
    assert usage.used is None and "names no pod" in (usage.note or "")


def test_a_container_of_a_user_is_in_doubt_where_it_has_the_device_open(tree: Path, meter: Meter) -> None:
    (tree / "dev").mkdir()
    (tree / "dev/card0").touch()
    function = tree / "sys/bus/pci/devices/0000:1b:00.0/drm/card0"
    function.mkdir(parents=True)
    (function / "dev").touch()
    (function / "uevent").write_text("DEVNAME=card0\n")
    process(tree, 1, f"user.slice/user-1000.slice/{PODMAN}")
    assert meter(tree).read(held(), amd()).used == 0
    (tree / "proc/1/fd").mkdir()
    (tree / "proc/1/fd/3").symlink_to(tree / "dev/card0")
    usage = meter(tree).read(held(), amd())
    assert usage.used is None and "process 1" in (usage.note or "") and "user.slice" in (usage.note or "")


def test_a_late_search_of_open_files_is_not_repeated_for_each_share(
    tree: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each open file takes 20 s to read."""
    now_s = [1000.0]

    def identity(path: Path | str) -> FileIdentity:
        now_s[0] += 20 if "fd" in Path(path).parts else 0
        return identity_of(path)

    monkeypatch.setattr("dra_agent.device_setup.open_files.identity_of", identity)
    monkeypatch.setattr("dra_agent.deadline.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    addresses = "0000:1b:00.0", "0000:1c:00.0"
    (tree / "dev").mkdir()
    (tree / "dev/card0").touch()
    for address in addresses:
        function = tree / f"sys/bus/pci/devices/{address}/drm/card0"
        function.mkdir(parents=True)
        (function / "dev").touch()
        (function / "uevent").write_text("DEVNAME=card0\n")
    process(tree, 1, f"user.slice/user-1000.slice/{PODMAN}")
    (tree / "proc/1/fd").mkdir()
    for number in range(9):
        (tree / f"proc/1/fd/{number}").touch()
    shares = held(), held("default/other", OTHER_POD, share="share-2")
    reader = meter(tree, *shares)
    for address in addresses:
        for share in shares:
            usage = reader.read(share, msgspec.structs.replace(amd(), pci_address=address))
            assert usage.used is None and "not read in time" in (usage.note or "")
    assert now_s[0] < 1000 + 2 * SEARCH_TIMEOUT_S


def test_usage_is_unknown_without_the_processes_of_the_host(tree: Path, meter: Meter) -> None:
    (tree / "proc/self/ns").mkdir(parents=True)
    (tree / "proc/self/ns/pid").symlink_to("pid:[4026532201]")
    usage = meter(tree).read(held(), amd())
    assert usage.used is None and "process namespace" in (usage.note or "")


def test_the_usage_of_each_process_is_reported(tree: Path, meter: Meter) -> None:
    usage = meter(tree).read(held(), gpu("mps"))
    assert (usage.limit, usage.limit_for) == (4 << 30, "process")


def test_the_driver_counts_by_the_cgroups_that_it_limits(
    tree: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tree / f"sys/fs/cgroup/{name}").mkdir()
    share = {held().key: ShareLimit(GPU, "0000:1b:00.0", 4 << 30, "GPU-1", ("a", "gone", "b"))}
    ShareLimitStore(tree / "state/limits").write(held().uid, share)

    class Driver(DriverLimit):
        def get(self, uuid: str, about: str, cgroup: Path) -> CgroupMemory:
            lanes.add(about)
            return CgroupMemory(4 << 30, {"a": 1, "b": 40}[cgroup.name])

    lanes: set[str] = set()
    monkeypatch.setattr("dra_agent.device_setup.shares.usage.DriverLimit", Driver)
    device = gpu("nvml-cgroup", uuid="GPU-1")
    assert meter(tree).read(held(), device) == Usage(4 << 30, 41, "driver, per cgroup", limit_for="container")
    assert lanes == {device.pci_address}
    # A sample has its own lane: a call of it that hangs must not delay those that prepare claims.
    lanes.clear()
    monkeypatch.setattr(NvmlClient, "is_running", True)
    assert meter(tree, is_sample=True).read(held(), device).used == 41
    assert lanes == {f"telemetry of {device.name}"}


def test_usage_without_a_counter_is_unknown(tree: Path, meter: Meter) -> None:
    usage = meter(tree).read(held(), gpu("none", "amd"))
    assert (usage.limit, usage.used, usage.counted_by) == (None, None, None)
    assert meter(tree).read(held(), None).note == "the device is not on this host"
    # A count that cannot be read is not a count of nothing.
    process(tree, 1, slice_of(POD))
    assert meter(tree).read(held(), amd()).used is None


def test_a_sample_never_starts_the_library(tree: Path) -> None:
    host = Host(tree / "sys", tree / "dev", tree / "proc")
    owners = ProcessOwners(host, (held(),), standalone=False, is_sample=True)
    reader = UsageReader(host, tree / "state", 1.0, owners, is_sample=True)
    try:
        for device in (gpu("mps", uuid="GPU-1"), gpu("nvml-cgroup", uuid="GPU-1")):
            usage = reader.read(held(), device)
            assert (usage.used, usage.note) == (None, "NVML is not running")
    finally:
        reader.close()


CLAIM = b"DRA_AGENT_DEVICE_GPU_0000_1B_00_0=default/train/gpu\0"


@pytest.fixture
def computing(tmp_path: Path) -> Path:
    """A node on which the claim's pod and another pod, with the claim's variable, compute on one GPU."""
    state = tmp_path / "state"
    root = state / "simulated/dgx-h100"
    dra_simulate.build("dgx-h100", root)
    for pid, pod, amount in ((4711, POD, 1500), (4712, OTHER_POD, 7)):
        folder = root / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(f"0::/{slice_of(pod)}\n")
        (folder / "environ").write_bytes(CLAIM)
        inject.start_process(root, "0000:1b:00.0", pid, amount * MIB)
    ledger = JournalLedger(state, "boot")
    record = ClaimRecord((ClaimDevice("n/gpu", GPU, ("gpu",), "share-1", consumed_capacity={"memory": "4Gi"}),))
    entry = LedgerEntry("uid-1", "default", "train", (HeldDevice("n/gpu", GPU, "gpu", "share-1", shared=True),))
    ledger.start(entry, durable=True)
    ledger.complete("uid-1", msgspec.to_builtins(record))
    ledger.close()
    return state


@pytest.fixture
def usage(
    computing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*arguments: str) -> str:
        assert main(["claims", "--usage", "--state-dir", str(computing), "--simulate", "dgx-h100", *arguments]) == 0
        return capsys.readouterr().out

    return run


def reserve(fake_api: FakeApi, *consumers: dict[str, str], uid: str = "uid-1") -> None:
    metadata = {"name": "train", "namespace": "default", "uid": uid}
    fake_api.put("resourceclaims", {"metadata": metadata, "spec": {}, "status": {"reservedFor": list(consumers)}})


def test_the_command_counts_the_pods_that_a_claim_is_reserved_for(
    usage: Callable[..., str], fake_api: FakeApi, tmp_path: Path
) -> None:
    reserve(fake_api, {"resource": "pods", "name": "train-0", "uid": POD})
    server = ("--kubeconfig", str(fake_api.kubeconfig(tmp_path / "kubeconfig")))
    (row,) = json.loads(usage(*server, "-o", "json"))
    assert (row["used"], row["counted_by"], row["note"]) == (1500 * MIB, "driver, per process", None)
    assert (row["device"], row["claim"], row["consumed"], row["limit"]) == (GPU, "default/train", "4Gi", None)
    assert "1500Mi" in usage(*server)
    assert json.loads(usage(*server, "-n", "elsewhere", "-o", "json")) == []


def test_the_command_reports_that_the_pods_are_unknown(
    usage: Callable[..., str], fake_api: FakeApi, tmp_path: Path
) -> None:
    (row,) = json.loads(usage("-o", "json"))
    assert (row["used"], row["counted_by"]) == (None, None) and "--kubeconfig" in row["note"]
    server = ("--kubeconfig", str(fake_api.kubeconfig(tmp_path / "kubeconfig")), "-o", "json")
    assert "deleted" in json.loads(usage(*server))[0]["note"]
    reserve(fake_api, {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "train", "uid": "u"})
    assert "podgroups" in json.loads(usage(*server))[0]["note"]


def test_another_claim_of_the_name_does_not_determine_the_pods(
    usage: Callable[..., str], fake_api: FakeApi, tmp_path: Path
) -> None:
    reserve(fake_api, {"resource": "pods", "name": "train-0", "uid": POD}, uid="another")
    (row,) = json.loads(usage("--kubeconfig", str(fake_api.kubeconfig(tmp_path / "kubeconfig")), "-o", "json"))
    assert row["used"] is None and "another claim of this name" in row["note"]


class CountedUids(frozenset[str]):
    """UIDs of pods that count how often one is searched."""

    searches = 0

    def __contains__(self, uid: object) -> bool:
        CountedUids.searches += 1
        return super().__contains__(uid)


def test_shares_are_compared_once_for_each_pod_and_not_for_each_process(tree: Path) -> None:
    shares = [
        msgspec.structs.replace(
            held(f"default/claim-{number}", share=f"share-{number}"), pods=CountedUids({str(number)})
        )
        for number in range(40)
    ]
    owners = ProcessOwners(Host(tree / "sys", tree / "dev", tree / "proc"), shares, standalone=False, is_sample=True)
    places = [Place("pod", str(number % 5), f"cgroup-{number}") for number in range(100)]
    CountedUids.searches = 0
    problems = [[owners.problem(share, place) for share in shares] for place in places]
    assert CountedUids.searches == 40 * 5
    assert problems == [["" if number % 5 == index else None for index in range(40)] for number in range(100)]
