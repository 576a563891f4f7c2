"""What happens to a simulated host reaches the agent's inventory, by the same way as on a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.nvidia.nvml_client import WHOLE, NvmlClient
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.tracker import InventoryTracker
from dra_agent.topology import scan
from dra_simulate import build, inject, tree
from eventually import DEADLINE_S
from inventory.rescan import rescan

ADDRESS = "0000:43:00.0"
GPU = "gpu-0000-43-00-0"


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Path, Host, InventoryTracker]]:
    root = tmp_path / "host"
    host = build("dgx-h100", root)
    watch = InventoryTracker(Collector(host, InventorySettings(nvml_timeout=DEADLINE_S)), scan(host))
    yield root, host, watch
    inject.clear(root)  # so that no thread is left in the library
    watch.close()


def test_an_unplugged_gpu_leaves_and_returns(watched: tuple[Path, Host, InventoryTracker]) -> None:
    root, host, watch = watched
    before = watch.inventory
    assert not rescan(watch, host), "nothing changed"
    inject.unplug(root, "1")
    gone = rescan(watch, host)
    assert (gone.removed, gone.added, gone.changed) == ((GPU,), (), ())
    inject.replug(root, "1")
    assert rescan(watch, host).added == (GPU,)
    assert watch.inventory.devices == before.devices


def test_a_gpu_that_returns_is_never_seen_half_there(
    watched: tuple[Path, Host, InventoryTracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, host, watch = watched
    inject.unplug(root, "1")
    rescan(watch, host)
    create, seen = tree.create, []

    def create_and_look(path: str, entry: tree.File | tree.Link | tree.Node) -> None:
        create(path, entry)
        seen.append(rescan(watch, host))

    monkeypatch.setattr(tree, "create", create_and_look)
    inject.replug(root, "1")
    seen.append(rescan(watch, host))
    devices = [(polled.added, polled.removed, polled.changed, polled.health) for polled in seen]
    assert [one for one in devices if any(one)] == [((GPU,), (), (), ())]


def test_a_hung_gpu_is_unmonitored_and_the_others_are_well(
    watched: tuple[Path, Host, InventoryTracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, host, watch = watched
    before = {device.name: device.attributes for device in watch.inventory.devices}
    inject.hang(root, "nvmlDeviceGetMemoryInfo", device="1")
    call = NvmlClient.call

    def impatient(
        library: NvmlClient, name: str, *arguments: Any, about: str = WHOLE, timeout: float | None = None
    ) -> Any:
        hangs = name == "nvmlDeviceGetMemoryInfo" and about == ADDRESS
        return call(library, name, *arguments, about=about, timeout=0.3 if hangs else timeout)

    monkeypatch.setattr(NvmlClient, "call", impatient)
    assert rescan(watch, host).health == (GPU,)
    assert {device.name for device in watch.inventory.devices if device.health != "healthy"} == {GPU}
    assert {device.name: device.attributes for device in watch.inventory.devices} == before
    inject.clear(root)


def test_a_lost_gpu_is_unhealthy_while_its_function_is_still_there(
    watched: tuple[Path, Host, InventoryTracker],
) -> None:
    root, host, watch = watched
    inject.fail(root, None, 15, device="1")
    assert rescan(watch, host).health == (GPU,)
    lost = next(device for device in watch.inventory.devices if device.name == GPU)
    assert lost.health == "unhealthy"
    assert any("lost" in problem.message for problem in watch.inventory.problems)
    inject.clear(root)
    assert rescan(watch, host).health == (GPU,)
    assert all(device.health == "healthy" for device in watch.inventory.devices)


def test_a_driver_that_answers_nothing_costs_health_and_no_device(watched: tuple[Path, Host, InventoryTracker]) -> None:
    root, host, watch = watched
    watch.close()  # one library serves all of a process, and would be initialised already
    inject.fail(root, "nvmlInit", 18)
    fresh = InventoryTracker(Collector(host, InventorySettings(nvml_timeout=DEADLINE_S)), scan(host))
    inventory = fresh.inventory
    fresh.close()
    gpus = [device for device in inventory.devices if device.family == "gpu"]
    assert len(gpus) == 8
    assert {gpu.health for gpu in gpus} == {"unmonitored"}
    assert all("uuid" in gpu.attributes for gpu in gpus), "procfs still reports it"
