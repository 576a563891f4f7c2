from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import tiers
from deadlines import a_minute
from device_setup.hung import wait_for_access
from dra_agent.claim import ClaimDevice
from dra_agent.device_setup.amd import AmdPartitionConfig, AmdPartitionSetup
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.collector import Collector, collect
from dra_agent.inventory.mode_changes import ModeChanges
from dra_agent.inventory.model import Inventory
from dra_agent.prepare.setup import SetupDevice, UnsuitableError
from dra_agent.topology import scan
from dra_simulate import build_machine, inject
from dra_simulate.kernel import SimulatedKernel
from dra_simulate.machine import Function
from dra_simulate.roles.amd import LINUX_6_8, AmdGpu, AmdgpuDriver
from eventually import DEADLINE_S
from inventory.incomplete_nodes import incomplete_nodes, unread, was_read
from inventory.test_amd_kernels import EVERY_DRIVER
from inventory.test_amd_modes import DIVISIBLE, machine

FIRST, SECOND = "0000:11:00.0", "0000:12:00.0"
NONE = AmdPartitionConfig()


class Bench:
    def __init__(self, folder: Path, driver: AmdgpuDriver = LINUX_6_8) -> None:
        self.root = folder / "host"
        self.machine = machine(driver=driver)
        self.host = build_machine(self.machine, self.root)
        self.kernel = SimulatedKernel(self.root, self.machine)
        self.state = folder / "state"

    def setup(self, deadline: float = DEADLINE_S) -> AmdPartitionSetup:
        return AmdPartitionSetup(self.host, self.kernel, self.state, deadline=deadline)

    @property
    def inventory(self) -> Inventory:
        return collect(self.host, scan(self.host), DIVISIBLE)

    def item(self, name: str, address: str = FIRST) -> SetupDevice:
        stem = "gpu-" + address.replace(":", "-").replace(".", "-")
        device = self.inventory.device(stem + name)
        assert device is not None
        return SetupDevice(ClaimDevice("n/gpu", device.name, ("request",)), device)

    def mode(self, address: str = FIRST) -> str:
        return (self.host.sysfs / "bus/pci/devices" / address / "current_compute_partition").read_text().strip()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def given(setup: AmdPartitionSetup, uid: str, *items: SetupDevice) -> list[list[str]]:
    outcome = setup.set_up(uid, items, NONE, None, a_minute())
    edits = [outcome.edits[item.key] for item in items]
    return [[node.path for node in one.device_nodes] + [mount.container_path for mount in one.mounts] for one in edits]


def test_a_partition_that_its_driver_does_not_describe_waits(bench: Bench) -> None:
    item = bench.item("-cpx-0")
    unknown = replace(item, device=msgspec.structs.replace(item.device, identity={}))
    with pytest.raises(RetryableError, match="is not known now"):
        given(bench.setup(), "uid-1", unknown)
    assert bench.mode() == "SPX"


def test_a_partition_divides_its_gpu_and_gets_its_own_render_node(bench: Bench) -> None:
    setup = bench.setup()
    first, third = bench.item("-cpx-0"), bench.item("-cpx-2")
    assert setup.default(first.device) == NONE
    assert given(setup, "uid-1", first) == [["/dev/dri/card0", "/dev/dri/renderD128"]]
    assert (bench.mode(FIRST), bench.mode(SECOND)) == ("CPX", "SPX")
    (nodes,) = given(setup, "uid-2", third)
    assert nodes == ["/dev/dri/card2", "/dev/dri/renderD130"]
    assert all(bench.host.dev_path(node).exists() for node in nodes)
    assert given(setup, "uid-2", third) == [nodes], "a repeat changes nothing"


@EVERY_DRIVER
def test_a_claim_for_one_partition_gets_that_partition_and_no_idle_node(driver: AmdgpuDriver, tmp_path: Path) -> None:
    bench = Bench(tmp_path, driver)
    assert given(bench.setup(), "uid-1", bench.item("-cpx-3")) == [["/dev/dri/card3", "/dev/dri/renderD131"]]
    assert given(bench.setup(), "uid-2", bench.item("", SECOND)) == [["/dev/dri/card8", "/dev/dri/renderD136"]]
    assert bench.host.dev_path("/dev/dri/renderD137").exists(), "the nodes of partitions are there in every mode"


def test_each_partition_of_a_mode_has_its_own_nodes(bench: Bench) -> None:
    nodes = given(bench.setup(), "uid-1", *(bench.item(f"-qpx-{n}") for n in range(4)))
    renders = [paths[-1] for paths in nodes]
    assert len(set(renders)) == 4 and bench.mode() == "QPX"


def test_the_mode_stays_after_the_last_claim_and_the_next_one_changes_it(bench: Bench) -> None:
    setup, part, whole = bench.setup(), bench.item("-dpx-1"), bench.item("")
    given(setup, "uid-1", part)
    setup.tear_down("uid-1", [part.key], None, a_minute())
    assert bench.mode() == "DPX"
    assert list((bench.state / "amd").iterdir()) == []
    assert given(setup, "uid-2", whole) == [["/dev/dri/card0", "/dev/dri/renderD128"]]
    assert bench.mode() == "SPX"
    setup.tear_down("uid-2", [whole.key], None, a_minute())
    setup.tear_down("uid-2", [whole.key], None, a_minute())


def test_a_second_mode_waits_for_the_claims_of_the_first(bench: Bench) -> None:
    part, other = bench.item("-dpx-1"), bench.item("-cpx-0")
    given(bench.setup(), "uid-1", part)
    restarted = bench.setup()
    with pytest.raises(RetryableError, match="mode DPX for claim uid-1, and it needs CPX"):
        given(restarted, "uid-2", other)
    assert bench.mode() == "DPX"
    restarted.roll_back("uid-2", [other.key], NONE, a_minute())
    restarted.tear_down("uid-1", [part.key], None, a_minute())
    given(restarted, "uid-2", other)
    assert bench.mode() == "CPX"


def test_a_gpu_that_a_program_uses_is_not_divided(bench: Bench) -> None:
    process = bench.host.proc / "4711"
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text("train\n")
    (process / "fd/9").symlink_to(bench.host.dev_path("/dev/dri/renderD128"))
    with pytest.raises(RetryableError, match=r"in mode SPX and cannot.*train \(process 4711\)") as refused:
        given(bench.setup(), "uid-1", bench.item("-cpx-0"))
    assert bench.mode() == "SPX" and refused.value.where == f"GPU {FIRST}"
    (process / "fd/9").unlink()
    given(bench.setup(), "uid-1", item := bench.item("-cpx-0"))
    assert bench.setup().noted("uid-1") == [item.key] and bench.setup().noted("uid-2") == []


def test_any_program_of_rocm_may_keep_an_older_driver_from_it(bench: Bench) -> None:
    (bench.root / "sys/class/kfd/kfd/proc/815").mkdir()
    with pytest.raises(RetryableError, match=r"processes 815.*ROCm"):
        given(bench.setup(), "uid-1", bench.item("-cpx-0"))
    assert bench.mode() == "SPX"


@pytest.mark.parametrize(
    ("errno", "error", "message"),
    [(22, PermanentError, "in its current memory mode"), (5, RetryableError, "Input/output error")],
)
def test_errors_of_the_driver_are_reported(bench: Bench, errno: int, error: type[Exception], message: str) -> None:
    inject.answer_write(bench.root, FIRST, "current_compute_partition", errno=errno, machine=bench.machine)
    with pytest.raises(error, match=message):
        given(bench.setup(), "uid-1", bench.item("-cpx-0"))


def test_a_driver_that_hangs_holds_up_one_gpu(bench: Bench, patience: float) -> None:
    setup = bench.setup(deadline=patience)
    item, other = bench.item("-cpx-0"), bench.item("-cpx-0", SECOND)
    inject.answer_write(bench.root, FIRST, "current_compute_partition", machine=bench.machine)
    with pytest.raises(RetryableError, match="has not returned"):
        given(setup, "uid-1", item)
    unread(bench.host, FIRST)
    assert len(given(setup, "uid-2", other)) == 1
    assert not was_read(bench.host, FIRST), "a read of the mode waits for the driver that is changing it"
    inject.clear(bench.root)
    wait_for_access(FIRST)
    given(setup, "uid-1", item)
    assert bench.mode() == "CPX"


def test_a_scan_during_the_change_sees_the_previous_devices(bench: Bench) -> None:
    changes = ModeChanges()
    collector = Collector(bench.host, DIVISIBLE, mode_changes=changes)
    collected = []

    class Midway:
        """The driver, when it has taken the old nodes away and made two of the new ones."""

        def write(self, path: str, text: str) -> None:
            bench.kernel.write(path, text)
            with incomplete_nodes(bench.host, FIRST, left=2):
                collected.append(collector.collect(scan(bench.host)))

        def read(self, path: str) -> str:
            return bench.kernel.read(path)

    before = collector.collect(scan(bench.host))
    setup = AmdPartitionSetup(bench.host, Midway(), bench.state, changes=changes)
    given(setup, "uid-1", *(bench.item(f"-cpx-{n}") for n in range(2)))
    assert collected == [before], "devices, counters and problems are the same"
    assert not changes.is_written(FIRST) and not changes.is_expected(FIRST), "the change is over"
    assert collector.collect(scan(bench.host)) == before
    collector.close()


@tiers.PATIENCE
def test_the_mode_is_not_read_while_a_driver_hangs(bench: Bench) -> None:
    changes = ModeChanges()
    collector = Collector(bench.host, DIVISIBLE, mode_changes=changes)
    before = collector.collect(scan(bench.host))
    setup = AmdPartitionSetup(bench.host, bench.kernel, bench.state, deadline=10.0, changes=changes)
    item = bench.item("-cpx-0")
    inject.answer_write(bench.root, FIRST, "current_compute_partition", machine=bench.machine)
    with pytest.raises(RetryableError, match="has not returned"):
        given(setup, "uid-1", item)
    unread(bench.host, FIRST)
    with pytest.raises(RetryableError, match="a write to current_compute_partition has not returned"):
        given(setup, "uid-1", item)
    assert collector.collect(scan(bench.host)) == before
    assert not was_read(bench.host, FIRST), "a read of the mode waits for the driver that is changing it"
    inject.clear(bench.root)
    wait_for_access(FIRST)
    given(setup, "uid-1", item)
    assert bench.mode() == "CPX"
    assert collector.collect(scan(bench.host)) == before
    collector.close()


def test_a_mode_that_the_driver_refuses_changes_nothing(bench: Bench) -> None:
    changes = ModeChanges()
    inject.answer_write(bench.root, FIRST, "current_compute_partition", errno=22, machine=bench.machine)
    with pytest.raises(PermanentError):
        given(AmdPartitionSetup(bench.host, bench.kernel, bench.state, changes=changes), "uid-1", bench.item("-cpx-0"))
    assert not changes.is_written(FIRST) and not changes.is_expected(FIRST)


def test_a_mode_that_was_changed_outside_is_set_again(bench: Bench) -> None:
    setup, item = bench.setup(), bench.item("-cpx-5")
    before = given(setup, "uid-1", item)
    bench.kernel.write(f"bus/pci/devices/{FIRST}/current_compute_partition", "SPX")  # as after a reboot
    assert given(setup, "uid-1", item) == before
    assert bench.mode() == "CPX"


def test_an_agent_that_dies_before_or_after_the_change_leaves_nothing_in_the_way(bench: Bench) -> None:
    class Crash(BaseException):
        pass

    class Dying:
        def __init__(self, late: bool) -> None:
            self.late = late

        def write(self, path: str, text: str) -> None:
            if self.late:
                bench.kernel.write(path, text)
            raise Crash

        def read(self, path: str) -> str:
            return bench.kernel.read(path)

    def dying(late: bool) -> Callable[[], object]:
        setup = AmdPartitionSetup(bench.host, Dying(late), bench.state)
        return lambda: given(setup, "uid-1", item)

    item, other = bench.item("-cpx-0"), bench.item("-dpx-0")
    for late in (False, True):
        with pytest.raises(Crash):
            dying(late)()
        bench.setup().roll_back("uid-1", [item.key], NONE, a_minute())
        given(bench.setup(), "uid-2", other)
        bench.setup().tear_down("uid-2", [other.key], None, a_minute())


def test_a_gpu_that_is_not_to_be_divided_is_none_of_it(bench: Bench) -> None:
    plain = collect(bench.host, scan(bench.host)).devices[0]
    assert bench.setup().default(plain) is None
    with pytest.raises(UnsuitableError, match=r"inventory\.partition"):
        bench.setup().check(plain, NONE)


def test_a_damaged_file_of_holders_is_set_aside(bench: Bench) -> None:
    setup, item = bench.setup(), bench.item("-cpx-0")
    given(setup, "uid-1", item)
    (bench.state / "amd/gpu-0000-11-00-0.json").write_bytes(b"{")
    setup.tear_down("uid-1", [item.key], None, a_minute())
    assert [path.name for path in (bench.state / "amd").iterdir()] == ["gpu-0000-11-00-0.json.corrupt-1"]


def test_a_partition_for_which_the_kernel_has_no_drm_device_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last GPU of the recorded MI300 host in CPX mode has seven partitions.
    monkeypatch.setattr("dra_agent.device_setup.amd.gpu.SETTLE_TIMEOUT_S", 0.1)
    bench = Bench(tmp_path)
    bench.machine = machine().changed(with_seven_devices)
    bench.host = build_machine(bench.machine, tmp_path / "other")
    bench.kernel = SimulatedKernel(tmp_path / "other", bench.machine)
    assert len(given(bench.setup(), "uid-1", bench.item("-cpx-7"))) == 1
    item = bench.item("-cpx-0", SECOND)
    with pytest.raises(RetryableError, match="7 of the 8 partitions of mode CPX") as raised:
        given(bench.setup(), "uid-2", item)
    assert "no DRM minor left" in (raised.value.hint or "")
    assert len([one for one in bench.inventory.devices if one.pci_address == SECOND]) == 7, "as it is, not by claims"


def with_seven_devices(function: Function) -> Function:
    if function.address != SECOND:
        return function
    roles = tuple(replace(one, drm_devices=7) if isinstance(one, AmdGpu) else one for one in function.roles)
    return replace(function, roles=roles)
