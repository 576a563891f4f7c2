"""The sampler's threads: on files of GPUs of Intel and AMD in a directory, with nothing else to wait for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.host import Host
from dra_agent.inventory.model import Device, Inventory, device_name
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.telemetry import sampler as sampler_module
from dra_agent.telemetry.accounting import load
from dra_agent.telemetry.model import DeviceSample
from dra_agent.telemetry.sampler import Sampler
from dra_agent.telemetry.sources.amd import AmdSource
from eventually import eventually
from telemetry.rig import claim, held

AMD, INTEL = "0000:0c:00.0", "0000:0d:00.0"
INTERVAL_S = 0.1

NewSampler = Callable[..., Sampler]


def gpu(vendor: str, address: str) -> Device:
    return Device(name=device_name("gpu", address), family="gpu", vendor=vendor, pci_address=address, attributes={})


def busy_percent(sysfs: Path) -> Path:
    return sysfs / "bus/pci/devices" / AMD / "gpu_busy_percent"


def set_energy(sysfs: Path, joules: int) -> None:
    file = sysfs / "bus/pci/devices" / INTEL / "hwmon/hwmon1/energy1_input"
    before = file.with_name("new")
    before.write_text(f"{joules * 1_000_000}\n")
    before.rename(file)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    root = tmp_path / "sys"
    busy_percent(root).parent.mkdir(parents=True)
    busy_percent(root).write_text("37\n")
    sensors = root / "bus/pci/devices" / INTEL / "hwmon/hwmon1"
    sensors.mkdir(parents=True)
    (sensors / "name").write_text("xe\n")
    set_energy(root, 100)
    return root


@pytest.fixture
def new_sampler(sysfs: Path, tmp_path: Path) -> Iterator[NewSampler]:
    """Make samplers on one state directory, with a claim on the GPU of Intel."""
    inventory = Inventory(devices=(gpu("amd", AMD), gpu("intel", INTEL)))
    entries: list[LedgerEntry] = [claim("train", held(device_name("gpu", INTEL)))]
    made: list[Sampler] = []

    def new(*, is_newest: Callable[[], bool] = lambda: True, interval_s: float = INTERVAL_S) -> Sampler:
        made.append(
            Sampler(
                Host(sysfs=sysfs),
                tmp_path,
                "boot-1",
                interval_s,
                inventory=lambda: inventory,
                entries=lambda: entries,
                is_newest=is_newest,
                device_timeout_s=1.0,
            )
        )
        return made[-1]

    yield new
    for sampler in made:
        sampler.stop()


def energy(sampler: Sampler) -> float | None:
    """Return the joules of the claim, as the last sample has them."""
    return next((usage.totals.get("energy_joules") for usage in sampler.snapshot().usage), None)


def saved_reading(state_dir: Path) -> float:
    """Return the last reading of the device's counter, which the file has."""
    return load(state_dir).usage[0].raw["energy_joules"][0]


def test_the_thread_samples_until_it_is_stopped(new_sampler: NewSampler, sysfs: Path) -> None:
    sampler = new_sampler()
    sampler.start()
    eventually(lambda: energy(sampler) == 0)
    set_energy(sysfs, 130)
    eventually(lambda: energy(sampler) == 30)
    sampler.stop()
    eventually(lambda: not sampler.snapshot().samples)


def test_the_newest_agent_continues_the_counters(new_sampler: NewSampler, sysfs: Path, tmp_path: Path) -> None:
    is_old_newest = [True]
    pauses: list[bool] = []

    def old_samples() -> bool:
        if not is_old_newest[0]:
            pauses.append(True)
        return is_old_newest[0]

    old, new = new_sampler(is_newest=old_samples), new_sampler(is_newest=lambda: not is_old_newest[0])
    old.start()
    new.start()
    eventually(lambda: energy(old) == 0)
    set_energy(sysfs, 130)
    eventually(lambda: energy(old) == 30)
    is_old_newest[0] = False
    eventually(lambda: len(pauses) > 1)
    set_energy(sysfs, 150)
    eventually(lambda: energy(new) == 50)
    # The driver is loaded again, and then the newest agent stops.
    set_energy(sysfs, 0)
    eventually(lambda: saved_reading(tmp_path) == 0)
    set_energy(sysfs, 20)
    eventually(lambda: energy(new) == 70)
    new.stop()
    is_old_newest[0] = True
    set_energy(sysfs, 25)
    eventually(lambda: energy(old) == 75)


def test_a_device_that_hangs_is_left_behind(new_sampler: NewSampler, sysfs: Path) -> None:
    file, hung = busy_percent(sysfs), device_name("gpu", AMD)
    value = file.rename(file.with_name("value"))
    os.mkfifo(file)  # a read waits until something is written
    sampler = new_sampler(interval_s=10.0)
    try:
        for message in ("no response within 1 s", "an earlier read has not returned"):
            sampler.sample()
            snapshot = sampler.snapshot()
            assert set(snapshot.samples) == {device_name("gpu", INTEL)}
            assert [(failure.device, failure.message) for failure in snapshot.failures] == [(hung, message)]
    finally:
        with suppress(OSError):  # no reader
            os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
        value.rename(file)

    def is_read_again() -> bool:
        sampler.sample()
        return hung in sampler.snapshot().samples

    eventually(is_read_again)


def test_samples_do_not_accumulate_while_no_thread_is_free(
    new_sampler: NewSampler, sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[Future[Any]] = []

    class Recording(DaemonExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            submitted.append(super().submit(fn, *args, **kwargs))
            return submitted[-1]

    monkeypatch.setattr(sampler_module, "DaemonExecutor", Recording)
    monkeypatch.setattr(sampler_module, "MAX_THREADS", 1)
    file, intel = busy_percent(sysfs), device_name("gpu", INTEL)
    value = file.rename(file.with_name("value"))
    os.mkfifo(file)  # a read waits until something is written
    sampler = new_sampler(interval_s=10.0)
    try:
        for _ in range(5):
            sampler.sample()
            failures = {(one.device, one.message) for one in sampler.snapshot().failures}
            assert (intel, "no thread is free to read it") in failures
        assert len(submitted) == 2, "one that hangs, and one that waits for its thread"
    finally:
        with suppress(OSError):
            os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
        value.rename(file)

    def is_read_again() -> bool:
        sampler.sample()
        return intel in sampler.snapshot().samples

    eventually(is_read_again)


def test_a_sample_that_takes_longer_than_the_interval_stays_current(
    sysfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = gpu("amd", AMD)
    busy_percent(sysfs).write_text("0\n")
    now_s, read = [1000.0], AmdSource.read

    def slow(source: AmdSource, wanted: Device) -> DeviceSample | None:
        now_s[0] += 9.0
        return read(source, wanted)

    monkeypatch.setattr(AmdSource, "read", slow)
    sampler = Sampler(
        Host(sysfs=sysfs),
        tmp_path,
        "boot-1",
        1.0,
        inventory=lambda: Inventory(devices=(device,)),
        entries=lambda: [claim("train", held(device.name))],
        now=lambda: now_s[0],
    )
    try:
        sampler.sample()
        sampler.sample()
        now_s[0] += 8.0  # most of the next sample
        assert set(sampler.snapshot().samples) == {device.name}
        assert sampler.snapshot().usage[0].idle_seconds == 9.0, "no time was without a sample"
        assert load(tmp_path).interval_seconds == 9.0, "doctor reads the age of the values against it"
        now_s[0] += 100.0
        assert not sampler.snapshot().samples
    finally:
        sampler.stop()


def test_a_first_hang_costs_other_devices_no_values(sysfs: Path, tmp_path: Path) -> None:
    now_s = [1000.0]
    sampler = Sampler(
        Host(sysfs=sysfs),
        tmp_path,
        "boot-1",
        1.0,
        inventory=lambda: Inventory(devices=(gpu("intel", INTEL),)),
        entries=list,
        now=lambda: now_s[0],
        device_timeout_s=3.0,
    )
    try:
        sampler.sample()
        now_s[0] += 1.0 + 3.0  # the next sample waits for another device that hangs
        assert set(sampler.snapshot().samples) == {device_name("gpu", INTEL)}
    finally:
        sampler.stop()
