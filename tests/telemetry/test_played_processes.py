"""Utilization of claims that share a GPU, compared with what their processes play on a simulated host."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dra_agent.device_setup.shares import owners
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.running_agent import check_telemetry
from dra_agent.processes.containers import Place, place_of
from dra_agent.simulate import inject, processes
from dra_agent.telemetry.control import current_values
from telemetry.rig import PODS, Rig, cgroup_of, recorded

GPU = "gpu-0000-00-04-0"
GIB = 1 << 30
PLAYED = (((20, 5), (60, 12)), ((0, 0), (97, 40)), ((45, 3), (0, 0)), ((0, 0), (0, 0)))
"""Percent of the GPU and its memory, by step, of the processes of two claims."""
PROCESSES = {4711: "a", 4712: "b"}
NOT_SUPPORTED = 3


@pytest.fixture
def shared(rig: Rig, root: Path) -> Rig:
    """Two claims share the GPU; each has a process in the cgroup of its pod."""
    rig.entries = [recorded(name, GPU, f"share-{name}") for name in ("a", "b")]
    rig.pods = {f"uid-{name}": frozenset({PODS[name]}) for name in ("a", "b")}
    for pid, pod in PROCESSES.items():
        processes.run(root, pid, cgroup_of(pod))
        play(root, pid, (0, 0))
    rig.sample()
    return rig


@pytest.fixture(autouse=True)
def no_processes(root: Path) -> None:
    """Tests of this module share a host."""
    for folder in (root / "proc").iterdir():
        if folder.name.isdecimal():
            inject.end_process(root, int(folder.name))
            processes.end(root, int(folder.name))
    inject.play(root, "0", ())
    inject.load(root, "0", utilization=(0, 0))


def play(root: Path, pid: int, utilization: tuple[int, int], *, sampled_at_us: int | None = None) -> None:
    inject.start_process(root, "0", pid, GIB, utilization=utilization, sampled_at_us=sampled_at_us)


def parts(rig: Rig, name: str) -> Any:
    return rig.of_claim("gpu_utilization_ratio", name, GPU), rig.of_claim("memory_utilization_ratio", name, GPU)


def failing(rig: Rig) -> set[tuple[str, str]]:
    return {(failure.source, failure.device) for failure in rig.sampler.snapshot().failures}


def test_claims_that_share_a_gpu_have_what_their_processes_played(shared: Rig, root: Path) -> None:
    for step in PLAYED:
        for pid, utilization in zip(PROCESSES, step, strict=True):
            play(root, pid, utilization)
        inject.load(root, "0", utilization=(sum(gpu for gpu, _ in step), sum(memory for _, memory in step)))
        shared.sample()
        for name, (gpu, memory) in zip(PROCESSES.values(), step, strict=True):
            assert parts(shared, name) == (pytest.approx(gpu / 100), pytest.approx(memory / 100)), step
            assert shared.of_claim("memory_used_bytes", name, GPU) == GIB
            assert shared.of_claim("power_watts", name, GPU) is None
            assert shared.of_claim("idle_seconds_total", name, GPU) is None
    assert failing(shared) == set()
    values = current_values("node-1", 10, 0, shared.sampler.snapshot(), shared.inventory, shared.entries)
    assert {one.name: one.values.gpu_utilization_ratio for one in values.claims} == {"a": 0, "b": 0}


def test_memory_of_many_claims_reads_the_cgroup_of_each_process_once(
    shared: Rig, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        processes.run(root, 4720 + number, cgroup_of("ab"[number % 2]))
        play(root, 4720 + number, (1, 1))
    reads: Counter[int] = Counter()

    def counted(proc: Path, pid: int) -> Place | None:
        reads[pid] += 1
        return place_of(proc, pid)

    monkeypatch.setattr(owners, "place_of", counted)
    shared.sample()
    assert shared.of_claim("memory_used_bytes", "a", GPU) == shared.of_claim("memory_used_bytes", "b", GPU) == 5 * GIB
    assert reads == Counter(dict.fromkeys((*PROCESSES, *range(4720, 4728)), 1))


def test_the_first_sample_has_no_utilization_by_process(rig: Rig, root: Path) -> None:
    rig.entries = [recorded("a", GPU, "share-a")]
    rig.pods = {"uid-a": frozenset({PODS["a"]})}
    processes.run(root, 4711, cgroup_of("a"))
    play(root, 4711, (30, 3))
    rig.sample()
    assert (parts(rig, "a"), rig.of_claim("memory_used_bytes", "a", GPU)) == ((None, None), GIB)
    rig.sample()
    assert parts(rig, "a") == (pytest.approx(0.3), pytest.approx(0.03))


def test_a_claim_that_holds_a_gpu_alone_has_what_the_driver_reports_of_the_gpu(rig: Rig, root: Path) -> None:
    rig.entries = [recorded("a", GPU, None)]
    rig.pods = {"uid-a": frozenset({PODS["a"]})}
    processes.run(root, 4711, cgroup_of("a"))
    inject.load(root, "0", utilization=(80, 8))
    for _ in range(2):
        play(root, 4711, (30, 3))
        rig.sample()
        assert parts(rig, "a") == (pytest.approx(0.8), pytest.approx(0.08))


def test_a_process_of_no_claim_is_in_no_claims_value(shared: Rig, root: Path) -> None:
    processes.run(root, 4713, "system.slice/display-manager.service")
    play(root, 4713, (50, 5))
    play(root, 4711, (10, 1))
    shared.sample()
    assert [parts(shared, name) for name in ("a", "b")] == [pytest.approx((0.1, 0.01)), (0, 0)]
    processes.run(root, 4713, cgroup_of("late"))
    shared.sample()
    assert [parts(shared, name) for name in ("a", "b")] == [(None, None)] * 2, "its pod may use either claim"


def test_a_claim_that_begins_or_ends_in_a_sample_leaves_no_value(
    shared: Rig, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(root, 4711, (10, 1))
    entries, shared.entries = shared.entries, []
    calls = iter((entries, entries[:1]))
    monkeypatch.setattr(shared, "read_entries", lambda: list(next(calls)))
    shared.sample()
    assert parts(shared, "a") == (None, None)


def test_claims_with_admin_access_have_no_value(shared: Rig, root: Path) -> None:
    shared.entries.append(recorded("monitor", GPU, None, admin=True))
    shared.pods["uid-monitor"] = frozenset({PODS["late"]})
    play(root, 4711, (10, 1))
    shared.sample()
    assert parts(shared, "a") == pytest.approx((0.1, 0.01))
    assert parts(shared, "monitor") == (None, None)


@pytest.mark.parametrize(
    ("utilization", "sampled"),
    [((101, 1), "now"), ((20, 101), "now"), ((20, 2), "before the last reading"), ((20, 2), "in the future")],
)
def test_implausible_values_are_named_and_not_reported(
    shared: Rig, root: Path, utilization: tuple[int, int], sampled: str
) -> None:
    shared.sample()
    # After the processes began, which were there when the host booted, however long ago that is.
    moments = {"before the last reading": time.time(), "in the future": time.time() + 3600}
    play(root, 4711, (10, 1))
    shared.sample()
    moment = moments.get(sampled)
    play(root, 4712, utilization, sampled_at_us=None if moment is None else round(moment * 1e6))
    shared.sample()
    assert [parts(shared, name) for name in ("a", "b")] == [pytest.approx((0.1, 0.01)), (None, None)]
    assert shared.of_claim("memory_used_bytes", "b", GPU) == GIB
    assert failing(shared) == {("processes", GPU)}


def test_a_gpu_that_does_not_count_by_process_is_named_by_doctor(shared: Rig, root: Path) -> None:
    inject.fail(root, "nvmlDeviceGetProcessUtilization", NOT_SUPPORTED)
    shared.now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    shared.sample(after_s=0)
    assert parts(shared, "a") == (None, None)
    assert shared.of_claim("memory_used_bytes", "a", GPU) == GIB
    (finding,) = check_telemetry(CheckContext(host=shared.host, state_dir=shared.state_dir))
    assert finding.where == GPU and "no utilization by process" in finding.message


def test_a_hang_of_the_driver_leaves_the_other_values(shared: Rig, root: Path) -> None:
    inject.hang(root, "nvmlDeviceGetProcessUtilization")
    for _ in range(2):
        shared.sample()
        assert parts(shared, "a") == (None, None)
        assert failing(shared) == {("nvml-processes", GPU)}
        assert shared.of_claim("memory_used_bytes", "a", GPU) == GIB


def test_two_shares_of_one_claim_have_no_value(rig: Rig, root: Path) -> None:
    rig.entries = [recorded("a", GPU, "share-1", "share-2")]
    rig.pods = {"uid-a": frozenset({PODS["a"]})}
    processes.run(root, 4711, cgroup_of("a"))
    for _ in range(2):
        play(root, 4711, (10, 1))
        rig.sample()
    assert parts(rig, "a") == (None, None)
