"""Utilization of claims by the clients of DRM that their processes have open."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from dra_agent.device_setup.shares.owners import HeldShare, ProcessOwners, UnknownOwnerError
from dra_agent.host import Host
from dra_agent.inventory.model import Device, device_name
from dra_agent.telemetry import drm_clients
from dra_agent.telemetry.drm_clients import Client, Engine, UncountedError, parse
from dra_agent.telemetry.process_use import ProcessUse, of_claim
from dra_agent.telemetry.sources.drm_processes import DrmProcesses
from dra_simulate import processes
from telemetry.rig import PODS, cgroup_of

ADDRESS, OTHER = "0000:0c:00.0", "0000:0d:00.0"
NS_PER_S = 1_000_000_000
STEP_S = 10.0


def gpu(vendor: str = "intel") -> Device:
    return Device(device_name("gpu", ADDRESS), "gpu", vendor, ADDRESS, {})


def share(claim: str, *pods: str) -> HeldShare:
    uids = frozenset(PODS[pod] for pod in pods)
    return HeldShare(f"uid-{claim}", f"team/{claim}", f"{gpu().name}/{claim}", None, "n/gpu", uids or None)


A, B = share("a", "a"), share("b", "b")


class Site:
    """A host with a source, and a clock that is set by tests."""

    def __init__(self, root: Path, vendor: str = "intel") -> None:
        self.root = root
        (root / "proc").mkdir()
        self.host = Host(root / "sys", root / "dev", root / "proc")
        self.now_s = 1000.0
        self.device = gpu(vendor)
        self.source = DrmProcesses(self.host, elapsed=lambda: self.now_s)

    def read(self, *shares: HeldShare, after_s: float = STEP_S) -> tuple[ProcessUse, ...] | None:
        self.now_s += after_s
        self.owners = ProcessOwners(self.host, shares, standalone=False, is_sample=True)
        places = self.owners.places()
        users = [p for p, place in places.items() if any(self.owners.problem(one, place) is not None for one in shares)]
        return self.source.read(self.device, self.owners, lambda: users)

    def of(self, *shares: HeldShare) -> list[float | None]:
        """Return the utilization of claims since the reading before; None where it is not known."""
        uses = self.read(*shares)
        assert uses is not None
        return [self._of(one, uses) for one in shares]

    def _of(self, held: HeldShare, uses: tuple[ProcessUse, ...]) -> float | None:
        try:
            return of_claim(held, uses, self.owners, None).gpu_utilization_ratio
        except UnknownOwnerError:
            return None

    def run(self, pid: int, pod: str) -> None:
        processes.run(self.root, pid, cgroup_of(pod))

    def i915(self, pid: int, client: int, seconds: float, *, descriptor: int = 3, address: str = ADDRESS) -> None:
        engines = {"render": round(seconds * NS_PER_S), "copy": 900 * NS_PER_S, "compute": 0}
        processes.open_drm(self.root, pid, descriptor, "i915", address, client, engines)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_each_claim_has_the_time_of_its_own_processes(site: Site) -> None:
    for pid, pod, seconds in ((11, "a", 5.0), (12, "a", 50.0), (13, "b", 1.0)):
        site.run(pid, pod)
        site.i915(pid, pid, seconds)
    assert site.read(A, B) is None, "there is no reading before"
    for pid, seconds in ((11, 7.0), (12, 51.0), (13, 6.0)):
        site.i915(pid, pid, seconds)
    assert site.of(A, B) == pytest.approx([0.3, 0.5])
    assert site.of(A, B) == [0, 0]


def test_a_client_counts_once_for_all_files_and_processes_that_have_it(site: Site) -> None:
    for pid in (11, 12):
        site.run(pid, "a")
        for descriptor in (3, 4):
            site.i915(pid, 7, 5.0, descriptor=descriptor)
    site.read(A)
    for pid in (11, 12):
        for descriptor in (3, 4):
            site.i915(pid, 7, 9.0, descriptor=descriptor)
    assert site.of(A) == pytest.approx([0.4])


def test_a_client_that_processes_of_two_claims_have_is_of_neither(site: Site) -> None:
    for pid, pod in ((11, "a"), (12, "b")):
        site.run(pid, pod)
        site.i915(pid, 7, 5.0)
    site.read(A, B)
    site.i915(11, 7, 6.0)
    site.i915(12, 7, 6.0)
    assert site.of(A, B) == [None, None]


def test_clients_of_another_gpu_and_of_no_claim_do_not_count(site: Site) -> None:
    site.run(11, "a")
    processes.run(site.root, 12, "system.slice/display-manager.service")
    for step in (0, 5):
        site.i915(11, 1, 1.0 + step / 5)
        site.i915(11, 1, 3.0 + step, descriptor=4, address=OTHER)
        site.i915(12, 2, 3.0 + step)
        if not step:
            site.read(A)
    assert site.of(A) == pytest.approx([0.1])


def test_a_pod_of_no_known_claim_leaves_all_claims_unknown_while_it_works(site: Site) -> None:
    site.run(11, "a")
    site.run(12, "late")
    for seconds in (1.0, 2.0):
        site.i915(11, 1, seconds)
        site.i915(12, 2, 5.0)
        if seconds == 1.0:
            site.read(A, B)
    assert site.of(A, B) == pytest.approx([0.1, 0]), "it has the GPU open and does nothing"
    site.i915(12, 2, 6.0)
    assert site.of(A, B) == [None, None]


def test_a_client_that_was_opened_since_counts_from_0(site: Site) -> None:
    site.read(A)
    site.run(11, "a")
    site.i915(11, 1, 4.0)
    assert site.of(A) == pytest.approx([0.4])


def test_a_client_that_was_closed_leaves_its_claim_unknown_once(site: Site) -> None:
    for pid, pod in ((11, "a"), (12, "b")):
        site.run(pid, pod)
        site.i915(pid, pid, 1.0)
    site.read(A, B)
    processes.end(site.root, 11)
    site.i915(12, 12, 3.0)
    assert site.of(A, B) == [None, pytest.approx(0.2)]
    assert site.of(A, B) == [0, 0]


def test_a_counter_that_goes_back_waits_until_it_is_larger(site: Site) -> None:
    site.run(11, "a")
    found: list[list[float | None]] = []
    for seconds in (5.0, 3.0, 6.0, 8.0):
        site.i915(11, 1, seconds)
        found.append(site.of(A) if found else [float(site.read(A) is not None)])
    assert [one for (one,) in found] == pytest.approx([0, 0, 0.1, 0.2])


def test_more_time_than_has_passed_is_a_lie_about_one_claim(site: Site) -> None:
    for pid, pod in ((11, "a"), (12, "b")):
        site.run(pid, pod)
        site.i915(pid, pid, 0.0)
    site.read(A, B)
    site.i915(11, 11, 12.0)
    site.i915(12, 12, 3.0)
    uses = site.read(A, B)
    assert uses is not None
    with pytest.raises(ValueError, match="kind render for 12 in 10"):
        of_claim(A, uses, site.owners, None)
    assert of_claim(B, uses, site.owners, None).gpu_utilization_ratio == pytest.approx(0.3)
    site.i915(11, 11, 13.0)
    assert site.of(A, B) == pytest.approx([0.1, 0]), "the next reading compares with it"


def test_two_processes_that_fill_more_than_the_time_have_no_value(site: Site) -> None:
    for pid in (11, 12):
        site.run(pid, "a")
        site.i915(pid, pid, 0.0)
    site.read(A)
    for pid in (11, 12):
        site.i915(pid, pid, 8.0)
    uses = site.read(A)
    assert uses is not None
    with pytest.raises(ValueError, match="160%"):
        of_claim(A, uses, site.owners, None)


def test_engines_of_one_kind_share_the_time(site: Site) -> None:
    site.run(11, "a")
    for busy in (0, 20):
        counters = {"render": 0, "compute": busy * NS_PER_S}
        processes.open_drm(site.root, 11, 3, "i915", ADDRESS, 1, counters, capacity={"compute": 4})
        if not busy:
            site.read(A)
    assert site.of(A) == pytest.approx([0.5])


def test_xe_counts_cycles(site: Site) -> None:
    site.run(11, "a")
    for busy, total in ((100, 1000), (350, 2000)):
        counters = {"rcs": (busy, total), "ccs": (0, total), "bcs": (busy * 3, total)}
        processes.open_drm(site.root, 11, 3, "xe", ADDRESS, 1, counters)
        if total == 1000:
            site.read(A)
    assert site.of(A) == pytest.approx([0.25])
    site.run(12, "a")
    for pid in (11, 12):
        processes.open_drm(site.root, pid, 3, "xe", ADDRESS, pid - 10, {"rcs": (350, 3000), "ccs": (0, 3000)})
    assert site.of(A) == [None], "the cycles that passed for the new client are not known"


def test_rocm_is_not_counted(tmp_path: Path) -> None:
    site = Site(tmp_path, "amd")
    for pid, pod in ((11, "a"), (12, "b")):
        site.run(pid, pod)
        processes.open_drm(tmp_path, pid, 3, "amdgpu", ADDRESS, pid, {})
    (tmp_path / "sys/class/kfd/kfd/proc/12").mkdir(parents=True)
    site.read(A, B)
    processes.open_drm(
        tmp_path, 11, 3, "amdgpu", ADDRESS, 11, {"gfx": 2 * NS_PER_S, "compute": NS_PER_S, "enc": NS_PER_S}
    )
    assert site.of(A, B) == [pytest.approx(0.2), None]


def test_a_driver_that_does_not_count_gives_no_value(site: Site) -> None:
    site.run(11, "a")
    site.i915(11, 1, 1.0)
    (site.root / "proc/11/fdinfo/3").write_text("pos:\t0\nflags:\t02\nmnt_id:\t24\n")
    site.read(A)
    assert site.of(A) == [None]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_process_that_cannot_be_read_gives_its_claim_no_value(
    site: Site, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def clients(reader: drm_clients.DrmReader, pid: int, pod: str) -> list[Client]:
        if pid == 11:
            raise OSError(code, os.strerror(code))
        return []

    monkeypatch.setattr(drm_clients.DrmReader, "clients", clients)
    for pid, pod in ((11, "a"), (12, "b")):
        site.run(pid, pod)
    site.read(A, B)
    assert site.of(A, B) == [None, 0]


def test_a_file_whose_path_is_too_long_for_readlink_is_read(tmp_path: Path) -> None:
    """Every container can open such a file."""
    with ExitStack() as opened:

        def kept(descriptor: int) -> int:
            opened.callback(os.close, descriptor)
            return descriptor

        folder = kept(os.open(tmp_path, os.O_RDONLY))
        for _ in range(20):
            os.mkdir("x" * 250, dir_fd=folder)
            folder = kept(os.open("x" * 250, os.O_RDONLY, dir_fd=folder))
        kept(os.open("file", os.O_CREAT | os.O_RDWR, dir_fd=folder))
        assert drm_clients.DrmReader(Path("/proc")).clients(os.getpid(), "pod") == []


def test_the_files_of_all_threads_of_a_process_count(site: Site) -> None:
    """Those of the first thread are none after it has ended, and another thread may have its own."""
    site.run(11, "a")
    process = site.root / "proc/11"
    for thread in ("11", "12", "13"):
        for folder in ("fd", "fdinfo"):
            (process / "task" / thread / folder).mkdir(parents=True)

    def use(thread: str, client: int, seconds: float) -> None:
        site.i915(11, client, seconds)
        for folder in ("fd", "fdinfo"):
            (process / folder / "3").replace(process / "task" / thread / folder / "3")

    for thread, client in (("12", 1), ("13", 2)):
        use(thread, client, 1.0)
    site.read(A)
    for thread, client in (("12", 1), ("13", 2)):
        use(thread, client, 3.0)
    assert site.of(A) == pytest.approx([0.4])


def test_hidden_processes_give_no_value(site: Site) -> None:
    (site.root / "proc/self/ns").mkdir(parents=True)
    (site.root / "proc/self/ns/pid").symlink_to("pid:[4026532201]")
    with pytest.raises(UnknownOwnerError, match="process namespace"):
        site.read(A)


def test_a_pid_of_another_process_has_no_earlier_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends while it is read, and another one gets its PID."""
    site.run(11, "a")
    site.i915(11, 1, 1.0)
    site.read(A, B)
    read = drm_clients.DrmReader.clients

    def replaced(reader: drm_clients.DrmReader, pid: int, pod: str) -> list[Client]:
        found = read(reader, pid, pod)
        processes.run(site.root, pid, cgroup_of("b"), started=200)
        return found

    monkeypatch.setattr(drm_clients.DrmReader, "clients", replaced)
    assert site.of(A, B) == [None, None]


def test_a_process_that_ends_while_it_is_read_leaves_the_claims_of_others_known(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod without a claim, whose shell starts many programs."""
    site.run(11, "a")
    site.run(12, "late")
    site.i915(11, 11, 1.0)
    site.read(A, B)
    site.i915(11, 11, 3.0)
    read = drm_clients.DrmReader.clients

    def ended(reader: drm_clients.DrmReader, pid: int, pod: str) -> list[Client]:
        found = read(reader, pid, pod)
        if pid == 12:
            processes.end(site.root, pid)
        return found

    monkeypatch.setattr(drm_clients.DrmReader, "clients", ended)
    assert site.of(A, B) == [pytest.approx(0.2), 0]


@pytest.mark.parametrize("limit", ["MAX_PROCESSES", "MAX_FILES"])
def test_a_pod_that_exceeds_limits_leaves_other_claims_known(
    site: Site, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(drm_clients, limit, 2)
    for pid, pod in ((11, "a"), (12, "a"), (13, "a"), (14, "b")):
        site.run(pid, pod)
        site.i915(pid, pid, 0.0)
    site.read(A, B)
    site.i915(14, 14, 2.0)
    assert site.of(A, B) == [None, pytest.approx(0.2)]


@pytest.mark.parametrize("limit", ["MAX_PROCESSES", "MAX_THREADS"])
def test_threads_without_files_have_limits_too(site: Site, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(drm_clients, limit, 4)
    for pid, pod in ((11, "a"), (14, "b")):
        site.run(pid, pod)
        site.i915(pid, pid, 0.0)
    for thread in range(110, 113):
        (site.root / f"proc/11/task/{thread}/fd").mkdir(parents=True)
    site.read(A, B)
    assert site.of(A, B) == [0, 0]
    for thread in range(113, 130):
        (site.root / f"proc/11/task/{thread}/fd").mkdir(parents=True)
    site.i915(14, 14, 2.0)
    assert site.of(A, B) == [None, pytest.approx(0.2)]
    reads: list[Path] = []

    def numbers(folder: Path) -> list[str]:
        reads.append(folder)
        return []

    monkeypatch.setattr("dra_agent.telemetry.drm_clients.numeric_entries", numbers)
    with pytest.raises(UncountedError, match="4"):
        drm_clients.DrmReader(site.root / "proc").clients(11, "a")
    assert len(reads) <= 5, "it ends at the limit"


def test_a_file_that_is_too_long_is_not_read(site: Site) -> None:
    for pid, pod in ((11, "a"), (12, "b")):
        site.run(pid, pod)
        site.i915(pid, pid, 0.0)
    (site.root / "proc/11/fdinfo/3").write_text("drm-x:\t0\n" * drm_clients.MAX_FDINFO_BYTES)
    site.read(A, B)
    assert site.of(A, B) == [None, 0]


XE = """pos:\t0
drm-driver:\txe
drm-client-id:\t3
drm-pdev:\t0000:03:00.0
drm-total-vram0:\t23992 KiB
drm-cycles-rcs: 28257900
drm-total-cycles-rcs:\t7655183225
drm-cycles-vcs:\t9
drm-total-cycles-vcs:\t7655183225
drm-engine-capacity-vcs:\t2
"""


DMA_BUF = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t2\nsize:\t4096\ncount:\t2\nexp_name:\tamdgpu\nname:\t"


@pytest.mark.parametrize("name", ["x\ndrm-driver:xe\ndrm-client-id:1", "x\npdev: 0000:03:00.0"])
def test_the_name_of_a_dma_buf_makes_no_client(name: str) -> None:
    """A process chooses it (DMA_BUF_SET_NAME), with line breaks."""
    assert parse(f"{DMA_BUF}{name}\n") is None


def test_the_text_of_a_client() -> None:
    assert parse(XE) == Client("xe", "0000:03:00.0", 3, {"rcs": Engine(28257900, 7655183225)})
    assert parse("pos:\t0\nflags:\t02\n") is None
    assert parse("drm-driver:\tast\ndrm-client-id:\t1\n") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (XE.replace("28257900", "-1"), "drm-cycles-rcs is '-1'"),
        (XE.replace("28257900", "1e9"), "drm-cycles-rcs is '1e9'"),
        (XE.replace("28257900", "٣"), "drm-cycles-rcs is"),
        (XE.replace("28257900", "18446744073709551616"), "drm-cycles-rcs is '18446744073709551616'"),
        (XE.replace("drm-client-id:\t3", "drm-client-id:\tx"), "drm-client-id is 'x'"),
        (XE + "drm-engine-capacity-rcs:\t0\n", "drm-engine-capacity-rcs is 0"),
    ],
)
def test_texts_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        XE.replace("-rcs", "-other"),
        XE.replace("drm-client-id:\t3\n", ""),
        "pdev:\t0000:03:00.0\npasid:\t32771\ngfx0:\t12.00%\n",
    ],
)
def test_texts_without_counters(text: str) -> None:
    with pytest.raises(UncountedError):
        parse(text)
