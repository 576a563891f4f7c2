"""Where there is a sign of a GPU, a missing part of the driver is a failure that names what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.host import Host

from . import lspci
from .journal import Journal
from .signs import find_signs, missing, smi_of

NONE = ()
LIBRARY = Path("/usr/lib/libnvidia-ml.so.1")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return dra_simulate.build("vm-1gpu", tmp_path / "host")


def test_a_machine_without_a_gpu_has_no_sign(tmp_path: Path) -> None:
    host = dra_simulate.build("cpu-only", tmp_path / "host")
    assert find_signs(host, NONE) == []
    assert missing(host, [], None) == ""


def test_every_sign_counts_alone(host: Host, tmp_path: Path) -> None:
    empty = Host(tmp_path / "no-sys", tmp_path / "no-dev", tmp_path / "no-proc")
    assert find_signs(empty, NONE) == []
    for one, sign in (
        (Host(host.sysfs, empty.dev, empty.proc), "PCI function 0000:00:04.0"),
        (Host(empty.sysfs, host.dev, empty.proc), str(host.dev / "nvidia0")),
        (Host(empty.sysfs, empty.dev, host.proc), str(host.proc / "driver/nvidia")),
    ):
        found = find_signs(one, NONE)
        assert sign in found
        assert found == [sign] or all("nvidia" in other for other in found)
    assert find_signs(empty, (LIBRARY,)) == [str(LIBRARY)]


def test_a_driver_that_is_not_loaded_is_a_failure(host: Host) -> None:
    shutil.rmtree(host.proc / "driver")
    problem = missing(host, find_signs(host, NONE), smi_of(host))
    assert "PCI function 0000:00:04.0" in problem and problem.endswith("run `modprobe nvidia`")


def test_a_missing_nvidia_smi_is_a_failure(host: Host) -> None:
    signs = find_signs(host, NONE)
    assert smi_of(host) is not None and missing(host, signs, smi_of(host)) == ""
    assert "nvidia-smi is not found: install it with the driver" in missing(host, signs, None)


def test_lspci_is_read_with_and_without_permission() -> None:
    details = (
        "0000:1a:00.0 3D controller: NVIDIA Corporation Device 20b5\n\tNUMA node: 1\n\tIOMMU group: 3\n"
        "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported\n"
        "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)\n\tKernel driver in use: nvidia\n"
    )
    found = lspci.read(details, "0000:17:01.0/18:00.0/1a:00.0")
    assert (found.generation, found.width, found.max_generation, found.max_width) == (1, 8, 4, 16)
    assert (found.iommu_group, found.numa_node, found.driver) == (3, 1, "nvidia")
    assert found.bridges == ("17:01.0", "18:00.0")
    denied = lspci.read("0000:1a:00.0 3D controller: NVIDIA\n\tCapabilities: <access denied>\n", "0000:1a:00.0")
    assert (denied.width, denied.iommu_group, denied.driver, denied.bridges) == (None, None, None, ())


def test_a_report_has_tables_and_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "report")
    journal.add("Table", [{"a": 1, "b": "x|y"}, {"a": None, "c": [1]}])
    journal.add("Lines", ["one", "two"])
    journal.add("Values", {"a": 1})
    journal.add("Nothing", [])
    journal.write()
    text = (tmp_path / "report/report.md").read_text()
    assert "| a | b | c |\n| --- | --- | --- |\n| 1 | x\\|y |  |\n|  |  | [1] |" in text
    assert "- one\n- two" in text and "- a: 1" in text and "## Nothing\n\nnothing" in text
    assert (tmp_path / "report/report.json").exists()
