"""Utilization by process from NVML: what the driver may report, and what is not believed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dra_agent.device_setup.shares.owners import HeldShare, ProcessOwners, UnknownOwnerError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.nvidia.nvml_client import NotSupportedError, StaleHandleError
from dra_agent.telemetry.process_use import ProcessUse, of_claim
from dra_agent.telemetry.sources import nvidia_processes
from dra_simulate import processes
from telemetry.rig import PODS, cgroup_of

GPU = Device("gpu-0000-1b-00-0", "gpu", "nvidia", "0000:1b:00.0", {}, identity={"uuid": "GPU-1"})
US_PER_S = 1_000_000
Sample = tuple[int, int, int, int]
"""PID, seconds since the epoch, and percent of the GPU and of its memory."""


def share(claim: str) -> HeldShare:
    return HeldShare(f"uid-{claim}", f"team/{claim}", f"{GPU.name}/{claim}", None, "n/gpu", frozenset({PODS[claim]}))


A, B = share("a"), share("b")


class Library:
    """NVML that returns what a test sets, after the time that it is called with."""

    is_running = True

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.since_us: list[int] = []
        self.error: Exception | None = None

    def call(self, name: str, *arguments: Any, about: str, timeout: float) -> Any:
        if name == "nvmlDeviceGetHandleByUUID":
            return "handle"
        assert name == "process_utilization" and about == f"processes of {GPU.name}" and timeout > 0
        if self.error is not None:
            raise self.error
        self.since_us.append(arguments[1])
        return [(pid, at_s * US_PER_S, sm, memory) for pid, at_s, sm, memory in self.samples]

    def close(self) -> None:
        pass


class Site:
    """A host that booted at second 0, with the source and clocks that tests set."""

    def __init__(self, root: Path, library: Library) -> None:
        self.root = root
        self.library = library
        self.wall_s = self.elapsed_s = 1000.0
        (root / "proc").mkdir()
        self.host = Host(root / "sys", root / "dev", root / "proc")
        self.source = nvidia_processes.NvidiaProcesses(
            self.host, wall=lambda: self.wall_s, elapsed=lambda: self.elapsed_s
        )

    def read(self, *samples: Sample, after_s: float = 10.0) -> tuple[ProcessUse, ...] | None:
        self.wall_s += after_s
        self.elapsed_s += after_s
        self.library.samples = list(samples)
        self.owners = ProcessOwners(self.host, (A, B), standalone=False, is_sample=True)
        return self.source.read(GPU, self.owners, list)

    def of(self, *samples: Sample, of_device: float | None = None) -> list[tuple[float | None, float | None] | None]:
        """Return the utilization of both claims and of memory for them; None where it is not known."""
        uses = self.read(*samples)
        assert uses is not None
        return [self._of(one, uses, of_device) for one in (A, B)]

    def _of(self, held: HeldShare, uses: tuple[ProcessUse, ...], of_device: float | None) -> Any:
        try:
            sample = of_claim(held, uses, self.owners, of_device)
        except UnknownOwnerError:
            return None
        return sample.gpu_utilization_ratio, sample.memory_utilization_ratio

    def run(self, pid: int, pod: str, **options: Any) -> None:
        processes.run(self.root, pid, cgroup_of(pod), **options)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    monkeypatch.setattr(nvidia_processes, "acquire", lambda *_: found)
    return found


@pytest.fixture
def site(tmp_path: Path, library: Library) -> Site:
    """Two claims with processes 11 and 12 of a, and 13 of b; the samples so far are read."""
    site = Site(tmp_path, library)
    for pid, pod in ((11, "a"), (12, "a"), (13, "b")):
        site.run(pid, pod)
    assert site.read((11, 1005, 99, 99)) is None, "it is of an unknown time before"
    return site


def near(*values: float) -> Any:
    return pytest.approx(values)


def test_each_claim_has_the_sum_of_its_processes(site: Site) -> None:
    found = site.of((11, 1012, 20, 2), (12, 1015, 15, 1), (13, 1019, 60, 30))
    assert found == [near(0.35, 0.03), near(0.6, 0.3)]
    assert site.of((13, 1025, 10, 1)) == [near(0, 0), near(0.1, 0.01)], "a process without a sample did nothing"
    assert site.library.since_us == [0, 1005 * US_PER_S, 1019 * US_PER_S]


def test_no_sample_of_any_process_is_0_for_all(site: Site) -> None:
    assert site.of() == [near(0, 0), near(0, 0)]
    assert site.library.since_us[-1] == 1005 * US_PER_S
    assert site.of((11, 1025, 10, 0)) == [near(0.1, 0), near(0, 0)]
    assert site.library.since_us[-1] == 1005 * US_PER_S, "none was newer"


def test_a_busy_gpu_without_any_process_is_not_0(site: Site) -> None:
    assert site.of(of_device=0.9) == [None, None]
    assert site.of(of_device=0.01) == [near(0, 0), near(0, 0)]
    assert site.of((13, 1032, 5, 0), of_device=0.9) == [near(0, 0), near(0.05, 0)]


def test_several_samples_of_a_process_are_averaged(site: Site) -> None:
    assert site.of((11, 1011, 20, 0), (11, 1012, 40, 0)) == [near(0.3, 0), near(0, 0)]


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ((13, 1012, 101, 0), "process 13 has used 101 % of the GPU"),
        ((13, 1012, 2147483632, 0), "2147483632 %"),
        ((13, 1012, 10, 101), "101 % of its memory"),
        ((13, 1005, 10, 1), "no sample of process 13 is from the time since"),
        ((13, 900, 10, 1), "no sample of process 13 is from the time since"),
        ((13, 1022, 10, 1), "a sample of process 13 is from the future"),
    ],
)
def test_lies_about_a_process_are_named_and_leave_other_claims_their_values(
    site: Site, sample: Sample, reason: str
) -> None:
    uses = site.read((11, 1011, 20, 2), sample)
    assert uses is not None
    assert of_claim(A, uses, site.owners, None).gpu_utilization_ratio == pytest.approx(0.2)
    with pytest.raises(ValueError, match=reason):
        of_claim(B, uses, site.owners, None)
    assert site.of((11, 1025, 20, 2), (13, 1025, 5, 0)) == [near(0.2, 0.02), near(0.05, 0)], "the next is not affected"


def test_lies_about_a_process_of_an_unknown_claim_are_named_for_each(site: Site) -> None:
    uses = site.read((11, 1011, 20, 2), (99, 1012, 2147483632, 0))
    assert uses is not None
    for claim in (A, B):
        with pytest.raises(ValueError, match="process 99 has used 2147483632 %"):
            of_claim(claim, uses, site.owners, None)


def test_a_repeated_sample_is_not_counted_twice(site: Site) -> None:
    assert site.of((11, 1012, 20, 2), (13, 1013, 60, 6)) == [near(0.2, 0.02), near(0.6, 0.06)]
    uses = site.read((11, 1012, 20, 2), (11, 1025, 40, 4), (13, 1013, 60, 6))
    assert uses is not None
    assert of_claim(A, uses, site.owners, None).gpu_utilization_ratio == pytest.approx(0.4)
    with pytest.raises(ValueError, match="no sample of process 13"):
        of_claim(B, uses, site.owners, None)


def test_a_repeated_sample_of_a_process_that_has_ended_is_ignored(site: Site) -> None:
    processes.end(site.root, 12)
    assert site.of((11, 1012, 20, 2), (12, 1013, 5, 0)) == [None, None]
    assert site.of((11, 1025, 20, 2), (12, 1013, 5, 0)) == [near(0.2, 0.02), near(0, 0)]
    site.run(12, "b", started=1030 * os.sysconf("SC_CLK_TCK"))
    assert site.of((11, 1035, 20, 2), (12, 1013, 5, 0)) == [near(0.2, 0.02), near(0, 0)], "another process has its PID"


def test_entries_that_the_driver_did_not_fill_are_ignored(site: Site) -> None:
    assert site.of((11, 1012, 20, 2), (0, 0, 0, 0), (0, 0, 0, 0)) == [near(0.2, 0.02), near(0, 0)]


def test_times_of_samples_may_be_since_boot(site: Site) -> None:
    site.wall_s += 1.7e9
    assert site.read() is None, "the clock was set"
    assert site.read((11, 1025, 50, 5)) is None, "it is of an unknown time before"
    site.run(13, "b", started=1035 * os.sysconf("SC_CLK_TCK"))
    assert site.of((11, 1036, 20, 2), (13, 1039, 60, 30)) == [near(0.2, 0.02), near(0.6, 0.3)]
    site.run(13, "b", started=1045 * os.sysconf("SC_CLK_TCK"))
    assert site.of((13, 1042, 60, 30), (11, 1049, 20, 2)) == [None, None], "another process had the PID"


def test_more_than_all_of_the_time_has_no_value(site: Site) -> None:
    uses = site.read((11, 1012, 80, 1), (12, 1012, 60, 1), (13, 1012, 30, 1))
    assert uses is not None
    with pytest.raises(ValueError, match="140%"):
        of_claim(A, uses, site.owners, None)
    assert of_claim(B, uses, site.owners, None).gpu_utilization_ratio == pytest.approx(0.3)
    assert site.of((11, 1025, 61, 0), (12, 1025, 40, 0)) == [near(1, 0), near(0, 0)], "each is rounded"


def test_a_process_that_has_exited_may_be_of_any_claim(site: Site) -> None:
    processes.end(site.root, 12)
    assert site.of((11, 1012, 20, 2), (12, 1013, 5, 0)) == [None, None]
    assert site.of((11, 1022, 20, 2)) == [near(0.2, 0.02), near(0, 0)]


def test_a_process_that_began_after_its_sample_has_the_pid_of_another(site: Site) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    site.run(13, "b", started=1018 * ticks)
    assert site.of((13, 1012, 50, 5)) == [None, None]
    assert site.of((13, 1025, 50, 5)) == [near(0, 0), near(0.5, 0.05)]


def test_a_process_outside_of_containers_is_of_no_claim(site: Site) -> None:
    processes.run(site.root, 14, "system.slice/display-manager.service", name="Xorg")
    assert site.of((11, 1012, 20, 2), (14, 1012, 70, 7)) == [near(0.2, 0.02), near(0, 0)]


def test_the_server_of_mps_works_for_all_claims(site: Site) -> None:
    processes.run(site.root, 14, "system.slice/dra-agent.service", name="nvidia-cuda-mps")
    assert site.of((14, 1012, 70, 7)) == [None, None]
    assert site.of((11, 1025, 20, 2)) == [near(0.2, 0.02), near(0, 0)], "the driver named its clients"
    site.run(11, "a", name="nvidia-cuda-mps")
    assert site.of((11, 1035, 20, 2)) == [near(0.2, 0.02), near(0, 0)], "that of a container works for its claim"


def test_a_pod_of_no_known_claim_may_be_of_any(site: Site) -> None:
    site.run(14, "late")
    assert site.of((11, 1012, 20, 2), (14, 1012, 1, 0)) == [None, None]


def test_a_clock_that_was_set_begins_again(site: Site) -> None:
    site.wall_s -= 500
    assert site.read((11, 515, 20, 2)) is None
    assert site.library.since_us[-1] == 1005 * US_PER_S
    assert site.read() is None
    assert site.library.since_us[-1] == 0
    assert site.of((13, 535, 20, 2)) == [near(0, 0), near(0.2, 0.02)]


def test_a_driver_that_does_not_count_by_process_is_named(site: Site) -> None:
    site.library.error = NotSupportedError("process_utilization: Not Supported", 3)
    with pytest.raises(ValueError, match="no utilization by process"):
        site.read()


def test_a_library_that_was_started_again_is_not_a_failure(site: Site) -> None:
    site.library.error = StaleHandleError("x")
    assert site.read() is None


def test_hidden_processes_give_no_value(site: Site) -> None:
    (site.root / "proc/self/ns").mkdir(parents=True)
    (site.root / "proc/self/ns/pid").symlink_to("pid:[4026532201]")
    with pytest.raises(UnknownOwnerError, match="process namespace"):
        site.read()


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        ({"uuid": "GPU-1"}, True),
        ({"uuid": "MIG-1"}, False),
        ({"uuid": "GPU-1", "parent": "gpu-x"}, False),
        ({}, False),
    ],
)
def test_whole_gpus_only(site: Site, identity: dict[str, str], expected: bool) -> None:
    device = Device("gpu-x", "gpu", "nvidia", "0000:1b:00.0", {}, identity=identity)
    assert site.source.can_read(device) is expected
