"""Values of claims, compared with the load that a GPU plays: a whole GPU, MIG devices, and shares."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_simulate import inject, nvml
from dra_simulate.nvml import LoadStep
from inventory.pair import ADDRESS, PAIR, handle, make
from telemetry.rig import Rig, claim, held

GPU = "gpu-0000-00-04-0"
MIB = 1 << 20
TRAINING = (
    LoadStep(at_ms=0, utilization=(20, 10), memory_bytes=2048 * MIB, power_milliwatts=45_000),
    LoadStep(at_ms=1_000_000, utilization=(97, 60), memory_bytes=12_000 * MIB, power_milliwatts=69_500),
    LoadStep(at_ms=2_000_000, utilization=(0, 0), memory_bytes=12_000 * MIB, power_milliwatts=30_000),
    LoadStep(at_ms=4_000_000, utilization=(55, 31), memory_bytes=500 * MIB, power_milliwatts=61_000),
)
STEP_S = 1000.0
SAMPLED_AT_S = (500.0, 1500.0, 2500.0, 3500.0, 4500.0)
SKIPPED_S = (500.0, STEP_S, STEP_S, STEP_S, STEP_S)
"""The test itself takes less than the rest of a step."""
ONE_G = 19


def step_at(steps: tuple[LoadStep, ...], second: float) -> LoadStep:
    return [step for step in steps if step.at_ms <= second * 1000][-1]


def joules(steps: tuple[LoadStep, ...], until_s: float) -> float:
    ends_s = [step.at_ms / 1000 for step in steps[1:]] + [until_s]
    return sum(
        step.power_milliwatts / 1000 * max(0.0, min(end_s, until_s) - step.at_ms / 1000)
        for step, end_s in zip(steps, ends_s, strict=True)
    )


def test_a_claim_has_the_load_that_its_gpu_played(rig: Rig, root: Path) -> None:
    rig.interval_s = STEP_S
    rig.restart()
    rig.entries = [claim("train", held(GPU))]
    began = time.monotonic()
    inject.play(root, "0", TRAINING)
    for second, skipped_s in zip(SAMPLED_AT_S, SKIPPED_S, strict=True):
        inject.skip(root, skipped_s)
        rig.sample(after_s=STEP_S)
        played_s = time.monotonic() - began
        step = step_at(TRAINING, second)
        found = {
            name: rig.of_claim(name, "train", GPU)
            for name in ("gpu_utilization_ratio", "memory_utilization_ratio", "memory_used_bytes", "power_watts")
        }
        assert found == {
            "gpu_utilization_ratio": pytest.approx(step.utilization[0] / 100),
            "memory_utilization_ratio": pytest.approx(step.utilization[1] / 100),
            "memory_used_bytes": step.memory_bytes,
            "power_watts": pytest.approx(step.power_milliwatts / 1000),
        }, f"second {second:g}"
        energy = rig.of_claim("energy_joules_total", "train", GPU)
        assert energy is not None
        # The sampling error: the schedule went on between its second and the reading.
        error = played_s * max(one.power_milliwatts for one in TRAINING) / 1000 + 0.01
        assert energy == pytest.approx(joules(TRAINING, second) - joules(TRAINING, SAMPLED_AT_S[0]), abs=error)
    idle_s = rig.of_claim("idle_seconds_total", "train", GPU)
    assert idle_s == STEP_S, "from second 2500 to 3500, between the two samples at which it was idle"
    assert rig.sampler.snapshot().failures == ()


def test_mig_devices_have_the_memory_that_each_played(tmp_path: Path) -> None:
    root, state = tmp_path / "host", tmp_path / "state"
    host = dra_simulate.build_machine(PAIR, root)
    library = acquire(host.nvml, 20.0)
    try:
        library.start()
        library.call("nvmlDeviceSetMigMode", handle(library), 1, about=ADDRESS)
        instances = [make(library, ONE_G, start, 1) for start in (0, 1)]
        schedules = [
            tuple(LoadStep(at_ms=at_ms, memory_bytes=mib * MIB) for at_ms, mib in ((0, first), (1_000_000, second)))
            for first, second in ((1024, 7168), (512, 0))
        ]
        state.mkdir()
        rig = Rig(host, state)
        try:
            parts = [device.name for device in rig.inventory.devices if device.pci_address == ADDRESS]
            rig.entries = [claim(f"claim-{number}", held(part)) for number, part in enumerate(parts)]
            inject.play(root, ADDRESS, TRAINING, PAIR)
            for instance, steps in zip(instances, schedules, strict=True):
                inject.play(root, ADDRESS, steps, PAIR, gpu_instance=instance)
            for second, skipped_s in ((500.0, 500.0), (1500.0, 1000.0)):
                inject.skip(root, skipped_s)
                rig.sample()
                used = [rig.of_claim("memory_used_bytes", f"claim-{n}", part) for n, part in enumerate(parts)]
                assert used == [step_at(steps, second).memory_bytes for steps in schedules]
                of_gpu = ("dra_agent_claim_power_", "dra_agent_claim_energy_", "dra_agent_claim_temperature_")
                assert not [name for name in rig.series() if name.startswith(of_gpu)], (
                    "the power and the energy that the GPU played are of both claims together"
                )
        finally:
            rig.close()
    finally:
        library.close()


def test_claims_that_share_a_gpu_have_nothing_of_what_it_played(rig: Rig, root: Path) -> None:
    rig.entries = [claim(f"share-{number}", held(GPU, share=str(number))) for number in (1, 2)]
    inject.play(root, "0", TRAINING)
    for second, skipped_s in zip(SAMPLED_AT_S, SKIPPED_S, strict=True):
        inject.skip(root, skipped_s)
        rig.sample()
        series = rig.series()
        assert not [name for name in series if name.startswith("dra_agent_claim_")]
        power = [value for name, value in series.items() if name.startswith("dra_agent_device_power_watts{")]
        assert power == [pytest.approx(step_at(TRAINING, second).power_milliwatts / 1000)]


def test_a_load_that_ends_leaves_nothing(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    inject.play(root, "0", TRAINING)
    inject.skip(root, STEP_S)
    rig.sample(after_s=STEP_S)
    inject.play(root, "0", ())
    rig.sample()
    assert rig.sampler.snapshot().failures == (), "its energy stays counted"
    assert rig.of_claim("gpu_utilization_ratio", "train", GPU) == 0
    assert rig.of_claim("memory_used_bytes", "train", GPU) == 0


def test_a_load_is_played_on_after_another_command_has_built_the_host_again(tmp_path: Path) -> None:
    root = tmp_path / "host"
    dra_simulate.build("vm-1gpu", root)
    inject.play(root, "0", TRAINING)
    before = nvml.read(root / "lib").loads
    dra_simulate.build("vm-1gpu", root)
    assert len(before) == 1 and nvml.read(root / "lib").loads == before
