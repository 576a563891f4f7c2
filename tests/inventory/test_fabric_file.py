"""The place of a host and its devices in the network, from a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_agent import simulate
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.settings import AttributeRule, InventorySettings
from dra_agent.topology import scan

PLACES = ("rack", "leaf", "spine", "core", "rail")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """GPUs that need no library, and adapters with RDMA."""
    return simulate.build("mi300x", tmp_path_factory.mktemp("host") / "host")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fabric.toml"


@pytest.fixture
def take(host: Host, file: Path) -> Iterator[Callable[..., Inventory]]:
    made: list[Collector] = []

    def collect(**settings: object) -> Inventory:
        if not made or settings:
            made.append(Collector(host, InventorySettings(fabric_file=str(file), **settings)))  # type: ignore[arg-type]
        return made[-1].collect(scan(host))

    yield collect
    for collector in made:
        collector.close()


def write(file: Path, text: str) -> None:
    """Replace the file, as a tool does that never leaves a half of it."""
    new = file.with_suffix(".new")
    new.write_bytes(text.encode(errors="surrogateescape"))
    new.rename(file)


def places(device: Device) -> dict[str, object]:
    return {name: device.attributes[name].value for name in PLACES if name in device.attributes}


def test_values_of_the_host_and_of_single_devices(file: Path, take: Callable[..., Inventory]) -> None:
    write(file, 'rack = "r12"\nleaf = "0xfc6a1c0300a1b2c0"\n')
    inventory = take()
    assert inventory.problems == ()
    assert [places(device) for device in inventory.devices] == [
        {"rack": "r12", "leaf": "0xfc6a1c0300a1b2c0"} for _ in inventory.devices
    ]
    nic = inventory.family("nic")[0]
    by_name = [f'[devices."{name}"]\nrail = 3\nleaf = "l3"\n' for name in (nic.pci_address, nic.identity["rdma"])]
    for text in by_name:
        write(file, f'rack = "r12"\nleaf = "l0"\n{text}')
        found = take()
        assert found.problems == ()
        assert places(found.family("nic")[0]) == {"rack": "r12", "leaf": "l3", "rail": 3}
        assert places(found.family("gpu")[0]) == {"rack": "r12", "leaf": "l0"}


TEXT = 'expected a text of 1 to 63 letters, digits, "-", "_" and "."'
NUMBER = "expected a whole number from 0 to 4095"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("rack = ", 1, "not TOML: Invalid value"),
        ('rack = "r1"\nspine = "s', 2, "not TOML: "),
        ("rack = 12", 1, f"rack: {TEXT}"),
        (f'\nrack = "{"r" * 64}"', 2, f"rack: {TEXT}"),
        ('rack = "r 12"', 1, f"rack: {TEXT}"),
        ('rack = ""', 1, f"rack: {TEXT}"),
        ('rack = "r12"\nrak = "r12"', 2, "unknown key 'rak'; known keys: rack, leaf, spine, core, rail, devices"),
        ("rail = -1", 1, f"rail: {NUMBER}"),
        ("rail = true", 1, f"rail: {NUMBER}"),
        ("rail = 1.5", 1, f"rail: {NUMBER}"),
        (f"rail = {'9' * 5000}", None, "not TOML that can be read: Exceeds the limit"),
        ("devices = 3", 1, "devices: expected a table"),
        ("# Devices\n[devices]\nmlx5_0 = 3", 3, "devices.mlx5_0: expected a table"),
        ('[devices."0000:1b:00.0"]\nrail = 0\n[devices.mlx5-0]\nrail = "0"', 4, f"devices.mlx5-0.rail: {NUMBER}"),
        ("[devices.mlx5_0]\r\nrail = 0\r\nname = 1", 3, "unknown key 'devices.mlx5_0.name'; known keys: rack"),
        ("[devices.mlx5_0]\ndevices = {}", 2, "unknown key 'devices.mlx5_0.devices'"),
        ("a = " + "[" * 5000 + "]" * 5000, None, "nested too deeply"),
        ("#" * 300_000, None, "262144 bytes"),
        ("rack = '\udcff'", None, "not UTF-8 text (byte 8)"),
    ],
)
def test_an_invalid_file_leaves_the_last_valid_values(
    text: str, line: int | None, message: str, file: Path, take: Callable[..., Inventory]
) -> None:
    write(file, 'rack = "r1"')
    before = take()
    write(file, text)
    after = take()
    (problem,) = after.problems
    assert problem.where == (str(file) if line is None else f"{file}:{line}")
    assert message in problem.message and problem.severity == "warning"
    assert take().problems == after.problems, "it is reported while it is there"
    assert [places(device) for device in after.devices] == [places(device) for device in before.devices]
    write(file, 'rack = "r2"')
    assert take().problems == () and places(take().devices[0]) == {"rack": "r2"}


def test_a_removed_file_removes_its_values(file: Path, take: Callable[..., Inventory]) -> None:
    write(file, 'rack = "r1"')
    assert places(take().devices[0]) == {"rack": "r1"}
    file.unlink()
    inventory = take()
    assert {str(places(device)) for device in inventory.devices} == {"{}"}
    assert ["does not exist" in problem.message for problem in inventory.problems] == [True]


def test_a_pipe_in_place_of_the_file_is_refused_and_blocks_nothing(file: Path, take: Callable[..., Inventory]) -> None:
    os.mkfifo(file)
    (problem,) = take().problems
    assert "FIFO" in problem.message


def test_a_path_that_no_file_can_have_is_a_problem(host: Host) -> None:
    collector = Collector(host, InventorySettings(fabric_file="a\0b"))
    (problem,) = collector.collect(scan(host)).problems
    collector.close()
    assert problem.message == "it cannot be read: a path has no NUL character"


def test_a_device_that_the_host_does_not_have_is_named(file: Path, take: Callable[..., Inventory]) -> None:
    write(file, 'rack = "r1"\n[devices.mlx5_99]\nrail = 1')
    (problem,) = take().problems
    assert problem.where == f"{file}:2" and problem.severity == "warning"
    assert problem.message == "this host has no device 'mlx5_99'"


def test_a_file_with_the_devices_of_many_hosts_is_one_problem(file: Path, take: Callable[..., Inventory]) -> None:
    write(file, "".join(f"[devices.mlx5_{number}]\nrail = 1\n" for number in range(100, 150)))
    (problem,) = take().problems
    assert problem.where == f"{file}:1" and problem.message.endswith("'mlx5_107' and 42 more")


def test_rules_see_the_values_and_replace_them(file: Path, take: Callable[..., Inventory]) -> None:
    write(file, 'rack = "r1"\nspine = "s1"')
    attributes = 'device.attributes["dra-agent.internal"]'
    rule = AttributeRule(f'{attributes}.type == "gpu" && {attributes}.rack == "r1"', {"spine": "s9"})
    inventory = take(attributes=(rule,), exclude=(f'{attributes}.type == "nic"',))
    assert [places(device) for device in inventory.devices] == [{"rack": "r1", "spine": "s9"}] * 8


def test_unchanged_devices_stay_the_same_objects(file: Path, take: Callable[..., Inventory]) -> None:
    """Slices and rules are computed again only for other objects."""
    write(file, 'rack = "r1"')
    before, after = take(), take()
    assert [one is other for one, other in zip(before.devices, after.devices, strict=True)] == [True] * len(
        before.devices
    )
