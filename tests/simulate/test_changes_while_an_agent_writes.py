"""Changes of a simulated host while an agent on it writes to its kernel: neither reverts a change of the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_agent.doctor.record import record
from dra_agent.errors import PermanentError
from dra_simulate import build, inject, nvml
from dra_simulate.kernel import SimulatedKernel

FPGA, GPU = "0000:98:00.0", "0000:43:00.0"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    build("dgx-h100", tmp_path / "host")
    return tmp_path / "host"


def bind(root: Path, address: str) -> None:
    kernel = SimulatedKernel(root)
    kernel.write(f"bus/pci/devices/{address}/driver_override", "vfio-pci\n")
    kernel.write(f"bus/pci/devices/{address}/driver/unbind", address)
    kernel.write("bus/pci/drivers_probe", address)


def driver(root: Path, address: str) -> str | None:
    link = root / "sys/bus/pci/devices" / address / "driver"
    return link.readlink().name if link.is_symlink() else None


@pytest.fixture
def just_before(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Let something happen at the last moment before the next change has the host's lock."""

    def arrange(act: Callable[[], object]) -> None:
        real = nvml.locked

        @contextmanager
        def locked(folder: Path) -> Iterator[None]:
            monkeypatch.setattr(nvml, "locked", real)
            act()
            with real(folder):
                yield

        monkeypatch.setattr(nvml, "locked", locked)

    return arrange


CHANGES: dict[str, Callable[[Path], object]] = {
    "unplug": lambda root: inject.unplug(root, "0"),
    "replug": lambda root: inject.replug(root, "7"),
    "clear": inject.clear,
    "answer_write": lambda root: inject.answer_write(root, "0", "unbind", errno=16),
    "build": lambda root: build("dgx-h100", root),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_binding_by_a_running_agent_is_kept(
    host: Path, just_before: Callable[[Callable[[], object]], None], what: str
) -> None:
    inject.unplug(host, "7")
    just_before(lambda: bind(host, GPU))
    CHANGES[what](host)
    assert driver(host, GPU) == "vfio-pci"
    # What is remembered agrees with the tree: the next change keeps it too.
    inject.clear(host)
    build("dgx-h100", host)
    assert driver(host, GPU) == "vfio-pci"


def test_two_concurrent_unplugs_both_take_effect(
    host: Path, just_before: Callable[[Callable[[], object]], None]
) -> None:
    just_before(lambda: inject.unplug(host, "1"))
    inject.unplug(host, "0")
    assert not (host / "sys/bus/pci/devices" / GPU).exists()
    inject.replug(host, "1")
    assert (host / "sys/bus/pci/devices" / GPU).exists()


def test_a_device_that_goes_meanwhile_is_not_unplugged_twice(
    host: Path, just_before: Callable[[Callable[[], object]], None]
) -> None:
    just_before(lambda: inject.unplug(host, "0"))
    with pytest.raises(Exception, match="already unplugged"):
        inject.unplug(host, "0")
    inject.replug(host, "0")


def test_a_place_without_a_host_gets_no_lock_file(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="not a simulated host"):
        inject.unplug(tmp_path / "nothing", "0")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def recording(tmp_path: Path) -> str:
    record(build("cpu-only", tmp_path / "recorded"), tmp_path / "recording")
    return str(tmp_path / "recording")


@pytest.mark.parametrize("kind", ["profile", "recording"])
def test_two_processes_may_build_the_same_new_host(
    kind: str, recording: str, tmp_path: Path, just_before: Callable[[Callable[[], object]], None]
) -> None:
    name = "cpu-only" if kind == "profile" else recording
    just_before(lambda: build(name, tmp_path / "new"))
    assert build(name, tmp_path / "new") == build(name, tmp_path / "new")


@pytest.mark.parametrize("kind", ["profile", "recording"])
def test_a_host_of_another_kind_that_is_built_meanwhile_is_kept(
    kind: str, recording: str, tmp_path: Path, just_before: Callable[[Callable[[], object]], None]
) -> None:
    first, second = ("vm-1gpu", "cpu-only") if kind == "profile" else ("vm-1gpu", recording)
    just_before(lambda: build(first, tmp_path / "new"))
    with pytest.raises(PermanentError, match="holds a"):
        build(second, tmp_path / "new")
    assert (tmp_path / "new/sys/bus/pci/devices/0000:00:04.0").exists()
    build(first, tmp_path / "new")


@pytest.mark.parametrize("kind", ["profile", "recording"])
def test_a_build_that_another_process_has_started_is_waited_for(
    kind: str, recording: str, tmp_path: Path, just_before: Callable[[Callable[[], object]], None]
) -> None:
    name = "cpu-only" if kind == "profile" else recording
    root = tmp_path / "new"
    with nvml.locked(root / "lib"):  # the first step of the other process
        (root / "sys").mkdir()

    def complete() -> None:
        (root / "sys").rmdir()
        build(name, root)

    just_before(complete)
    build(name, root)


def test_a_directory_of_something_else_gets_no_lock_file(recording: str, tmp_path: Path) -> None:
    (tmp_path / "other/lib").mkdir(parents=True)
    (tmp_path / "other/lib/precious").touch()
    (tmp_path / "other/file").touch()
    for name in ("cpu-only", recording):
        with pytest.raises(PermanentError):
            build(name, tmp_path / "other")
    assert sorted(path.name for path in (tmp_path / "other").rglob("*")) == ["file", "lib", "precious"]
