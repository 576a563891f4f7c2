"""Parts of hosts that are not ideal: what a scan and the files show of them, against the reports that they follow."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.topology import PciFunction, scan
from dra_simulate import build_machine
from dra_simulate.machine import Function, HostBridge, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import A100_PCIE, H200_SXM
from dra_simulate.parts.amd import mi300x
from dra_simulate.parts.display import DisplayChip, display, intel_igpu
from dra_simulate.parts.held import DISPLAY, RESERVING, USER_SPACE, held_by, passed_through
from dra_simulate.parts.network import connectx6dx
from dra_simulate.parts.nvidia import gpu
from dra_simulate.roles.tegra import TegraGpu
from rare_parts import amd_igpu, coral, qat, roce_lag, vgpu_host, without_driver, xdna

ADDRESS = "0000:01:00.0"


def built(folder: Path, *functions: Function, **fields: object) -> tuple[Host, dict[str, PciFunction]]:
    """A host of one socket with these functions on its root, and the scan of it."""
    machine = Machine(
        "own",
        "one root",
        nodes=(NumaNode("0-7", 64 << 30, (10,)),),
        bridges=(HostBridge("pci0000:00", 0, functions),),
    )
    host = build_machine(replace(machine, **fields), folder / "host")  # type: ignore[arg-type]
    topology = scan(host)
    assert topology.problems == ()
    return host, topology.by_address


@pytest.mark.parametrize("chip", ["ast", "mgag200", "hibmc-drm", "bochs-drm"])
def test_a_display_chip_has_a_card_and_no_render_node(chip: DisplayChip, tmp_path: Path) -> None:
    host, scanned = built(tmp_path, display(ADDRESS, 3, chip))
    drm = scanned[ADDRESS].drm
    assert drm is not None and (drm.card, drm.render, scanned[ADDRESS].driver) == ("card3", None, chip)
    assert sorted(path.name for path in (host.dev / "dri").iterdir()) == ["by-path", "card3"]


def test_integrated_gpus_have_nodes_of_their_own_and_kfd_knows_that_of_amd(tmp_path: Path) -> None:
    discrete = mi300x("0000:03:00.0", 0, machine="own")
    _, scanned = built(tmp_path, discrete, intel_igpu(8), amd_igpu("0000:c1:00.0", 9, machine="own"))
    for address, number in (("0000:00:02.0", 8), ("0000:c1:00.0", 9)):
        drm = scanned[address].drm
        assert drm is not None and (drm.card, drm.render) == (f"card{number}", f"renderD{128 + number}")
    assert (scanned["0000:00:02.0"].kfd is None, scanned["0000:c1:00.0"].kfd is None) == (True, False)


@pytest.mark.parametrize("driver", RESERVING + DISPLAY + USER_SPACE)
def test_a_driver_that_holds_a_gpu_makes_no_compute_node(driver: str, tmp_path: Path) -> None:
    one = gpu(ADDRESS, A100_PCIE, 0, machine="own")
    host, scanned = built(tmp_path, held_by(one, driver, 5), nvidia=NvidiaDriver("570.124.06", 12080))
    drm = scanned[ADDRESS].drm
    assert scanned[ADDRESS].driver == driver
    assert (drm is not None and drm.render == "renderD133") == (driver in DISPLAY)
    assert not (host.dev / "nvidia0").exists()
    assert (host.dev / "uio5").exists() == (driver in USER_SPACE)
    if driver in USER_SPACE:
        folder = host.sysfs / f"bus/pci/devices/{ADDRESS}/uio/uio5"
        assert (folder / "name").read_text() == f"{driver}\n"
        assert (host.sysfs / "class/uio/uio5").resolve() == folder.resolve()
    assert (host.dev / "gim-smi0").exists() == (driver == "gim")


def test_a_function_before_its_driver_has_nothing(tmp_path: Path) -> None:
    _, scanned = built(tmp_path, without_driver(connectx6dx(ADDRESS, 0, "ens1", 2, machine="own")))
    one = scanned[ADDRESS]
    assert (one.driver, one.net, one.infiniband) == (None, (), ())


def test_vfio_without_an_iommu_has_other_groups_and_nodes(tmp_path: Path) -> None:
    one = passed_through(connectx6dx(ADDRESS, 0, "ens1", 2, machine="own"), 4, iommu=False)
    host, scanned = built(tmp_path, one, iommu=False)
    assert (scanned[ADDRESS].driver, scanned[ADDRESS].iommu_group) == ("vfio-pci", 4)
    assert (host.sysfs / "kernel/iommu_groups/4/name").read_text() == "vfio-noiommu\n"
    assert sorted(path.name for path in (host.dev / "vfio").iterdir()) == ["noiommu-4", "vfio"]


def test_a_function_on_vfio_has_the_node_of_its_group(tmp_path: Path) -> None:
    host, scanned = built(tmp_path, passed_through(connectx6dx(ADDRESS, 0, "ens1", 2, machine="own"), 7))
    assert scanned[ADDRESS].vfio == "vfio7"
    assert (host.dev / f"vfio/{scanned[ADDRESS].iommu_group}").exists()


def test_a_vgpu_host_has_virtual_functions_on_the_driver_of_the_gpu(tmp_path: Path) -> None:
    whole = gpu("0000:4b:00.0", H200_SXM, 0, machine="own")
    host, scanned = built(tmp_path, vgpu_host(whole, (1433, 1433, 0, 0, 0)), nvidia=NvidiaDriver("580.159.01", 13000))
    virtual = scanned["0000:4b:00.0"].virtfns
    assert virtual == tuple(
        f"0000:4b:0{device}.{number}" for device, number in ((0, 4), (0, 5), (0, 6), (0, 7), (1, 0))
    )
    types = [
        (host.sysfs / f"bus/pci/devices/{address}/nvidia/current_vgpu_type").read_text().strip() for address in virtual
    ]
    assert types == ["1433", "1433", "0", "0", "0"]
    assert {scanned[address].driver for address in virtual} == {"nvidia"}
    assert sorted(path.name for path in host.dev.glob("nvidia[0-9]*")) == ["nvidia0"]


def test_under_roce_lag_the_first_function_has_the_rdma_device_of_both(tmp_path: Path) -> None:
    _, scanned = built(tmp_path, *roce_lag("0000:01:00", 0, ("ens1f0np0", "ens1f1np1"), 2, machine="own"))
    first, second = scanned["0000:01:00.0"], scanned["0000:01:00.1"]
    assert (first.net, first.infiniband) == (("ens1f0np0",), ("mlx5_bond_0",))
    assert (second.net, second.infiniband, second.uverbs) == (("ens1f1np1",), (), ())


def test_accelerators_of_other_classes_have_their_nodes(tmp_path: Path) -> None:
    functions = (xdna("0000:c2:00.1", 0), coral("0000:03:00.0", 0), qat("0000:6b:00.0", virtual=1))
    host, scanned = built(tmp_path, *functions)
    assert [scanned[one.address].class_ for one in functions] == ["0x118000", "0x088000", "0x0b4000"]
    assert (host.sysfs / "bus/pci/devices/0000:c2:00.1/accel/accel0/dev").exists()
    assert (host.sysfs / "class/apex/apex_0/device").resolve().name == "0000:03:00.0"
    for node in ("accel/accel0", "apex_0", "qat_adf_ctl"):
        assert stat.S_IFMT((host.dev / node).stat().st_mode) in (stat.S_IFCHR, stat.S_IFREG)
    assert scanned["0000:6b:00.1"].driver is None


@pytest.mark.parametrize("version", [None, "595.78"])
def test_the_gpu_of_a_jetson_is_no_pci_function(version: str | None, tmp_path: Path) -> None:
    soc = TegraGpu("a808000000.gpu", ("nvidia,p3834-0008", "nvidia,tegra264"), driver_version=version)
    host, scanned = built(tmp_path, platform=(soc,), iommu=False)
    assert scanned == {}
    names = (host.sysfs / "firmware/devicetree/base/compatible").read_bytes().split(b"\0")
    assert names == [b"nvidia,p3834-0008", b"nvidia,tegra264", b""]
    assert (host.sysfs / "bus/platform/devices/a808000000.gpu/driver").resolve().name == "nvgpu"
    assert (host.dev / "nvidia0").exists() == (version is not None)
