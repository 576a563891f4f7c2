from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dra_agent import simulate
from dra_agent.cli.main import main
from dra_agent.host import Host
from dra_agent.inventory import Attribute, Capacity, Device
from dra_agent.prepare import JournalLedger
from dra_agent.prepare.ports import Entry, HeldDevice
from dra_agent.prepare.record import ClaimRecord, DeviceRecord
from dra_agent.setup.limits.driver_limit import CgroupMemory
from dra_agent.setup.limits.grants import Grant, Grants
from dra_agent.setup.shares.usage import Held, Meter, Usage
from dra_agent.simulate import nvml

GPU = "gpu-0000-1b-00-0"
MIB = 1 << 20


def held(claim: str = "default/train", consumed: str | None = "4Gi", request: str = "gpu") -> Held:
    return Held("uid-1", claim, f"{GPU}/share-1", consumed, (request,))


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


def process(tree: Path, pid: int, claim: str, cgroup: str, request: str = "gpu") -> None:
    folder = tree / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "environ").write_bytes(
        b"PATH=/bin\0DRA_AGENT_DEVICE_GPU_0000_1B_00_0=" + f"{claim}/{request}".encode() + b"\0"
    )
    (folder / "cgroup").write_text(f"0::/{cgroup}\n")


def meter(tree: Path) -> Meter:
    host = Host(tree / "sys", tree / "dev", tree / "proc")
    return Meter(host, tree / "state", 1.0, tree / "proc")


def test_the_kernel_counts_by_the_cgroups_of_a_claims_containers(tree: Path) -> None:
    region = "drm/0000:1b:00.0/vram0"
    for name, amount in (("a", 100), ("b", 20), ("c", 3)):
        (tree / f"sys/fs/cgroup/{name}").mkdir()
        (tree / f"sys/fs/cgroup/{name}/dmem.current").write_text(f"drm/0000:99:00.0/vram0 7\n{region} {amount}\n")
    process(tree, 1, "default/train", "a")
    process(tree, 2, "default/train", "a")
    process(tree, 3, "default/train", "b")
    process(tree, 4, "default/other", "c")
    assert meter(tree).read(held(), gpu("dmem", "amd", dmem=region)) == Usage(
        4 << 30, 120, "kernel, per cgroup", limit_for="container"
    )


def test_two_shares_of_one_gpu_in_one_claim_are_not_counted_twice(tree: Path) -> None:
    region = "drm/0000:1b:00.0/vram0"
    for number, (name, amount) in enumerate((("large", 100), ("small", 20))):
        (tree / f"sys/fs/cgroup/{name}").mkdir()
        (tree / f"sys/fs/cgroup/{name}/dmem.current").write_text(f"{region} {amount}\n")
        process(tree, number + 1, "default/train", name, name)
    device = gpu("dmem", "amd", dmem=region)
    assert [meter(tree).read(held(request=name), device).used for name in ("large", "small")] == [100, 20]


def test_what_several_processes_have_each_is_told(tree: Path) -> None:
    usage = meter(tree).read(held(), gpu("mps"))
    assert (usage.limit, usage.limit_for) == (4 << 30, "process")


def test_the_driver_counts_by_the_cgroups_that_it_limits(tree: Path) -> None:
    for name in ("a", "b"):
        (tree / f"sys/fs/cgroup/{name}").mkdir()
    share = {held().key: Grant(GPU, "0000:1b:00.0", 4 << 30, "GPU-1", ("a", "gone", "b"))}
    Grants(tree / "state/limits").write("uid-1", share)

    class Driver:
        def get(self, uuid: str, address: str, cgroup: Path) -> CgroupMemory:
            return CgroupMemory(4 << 30, {"a": 1, "b": 40}[cgroup.name])

    reader = meter(tree)
    reader._driver = Driver()  # type: ignore[assignment]
    assert reader.read(held(), gpu("nvml-cgroup", uuid="GPU-1")) == Usage(
        4 << 30, 41, "driver, per cgroup", limit_for="container"
    )


def test_where_nobody_counts_it_is_unknown(tree: Path) -> None:
    usage = meter(tree).read(held(), gpu("none", "amd"))
    assert (usage.limit, usage.used, usage.counted_by) == (None, None, None)
    assert meter(tree).read(held(), None).note == "the device is not on this host now"
    # A count that cannot be read is not a count of nothing.
    process(tree, 1, "default/train", "gone")
    region = "drm/0000:1b:00.0/vram0"
    assert meter(tree).read(held(), gpu("dmem", "amd", dmem=region)).used is None


@pytest.fixture
def computing(tmp_path: Path) -> Iterator[Path]:
    """A simulated host on which a process of a claim and somebody else's compute on one GPU."""
    state = tmp_path / "state"
    root = state / "simulated/dgx-h100"
    host = simulate.build("dgx-h100", root)
    assert host.nvml_library is not None
    lib = host.nvml_library.parent
    environment = {"DRA_AGENT_DEVICE_GPU_0000_1B_00_0": "default/train/gpu"}
    mine = subprocess.Popen(["/bin/sleep", "60"], env=environment)
    other = subprocess.Popen(["/bin/sleep", "60"], env={})
    known = nvml.read(lib)
    uuid = next(gpu.uuid for gpu in known.devices if gpu.pci.address.lower().endswith("1b:00.0"))
    processes = (
        nvml.Process(uuid, mine.pid, 1500 * MIB),
        nvml.Process(uuid, other.pid, 7 * MIB),
    )
    nvml.write(lib, msgspec.structs.replace(known, processes=processes))
    ledger = JournalLedger(state, "boot")
    record = ClaimRecord((DeviceRecord("n/gpu", GPU, ("gpu",), "share-1", consumed_capacity={"memory": "4Gi"}),))
    entry = Entry("uid-1", "default", "train", (HeldDevice("n/gpu", GPU, "gpu", "share-1", shared=True),))
    ledger.start(entry, durable=True)
    ledger.complete("uid-1", msgspec.to_builtins(record))
    ledger.close()
    yield state
    for process in (mine, other):
        process.kill()
        process.wait()


def test_the_command_says_what_each_claim_has(computing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["claims", "--usage", "--state-dir", str(computing), "--simulate", "dgx-h100"]
    assert main([*arguments, "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["used"] == 1500 * MIB
    assert row["counted_by"] == "driver, per process"
    assert (row["device"], row["claim"], row["consumed"], row["limit"]) == (GPU, "default/train", "4Gi", None)
    assert main(arguments) == 0
    assert "1500Mi" in capsys.readouterr().out
    assert main([*arguments, "-n", "elsewhere", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
