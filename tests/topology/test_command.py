"""The command `dra-agent topology`."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from dra_agent.cli.main import main
from dra_agent.topology.pci_ids import PciIds
from topology.conftest import Machine

AGENT = Path(sys.executable).with_name("dra-agent")


def run(*arguments: str | Path, state: Path) -> subprocess.CompletedProcess[str]:
    command = [AGENT, "topology", "--state-dir", state, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done


def test_a_recorded_host_in_each_output_format(machine: Machine, tmp_path: Path) -> None:
    import yaml

    root = ("--sysfs-root", machine("hwloc-8ve").sysfs)
    tree = run(*root, state=tmp_path)
    assert tree.returncode == 0
    assert "switch 0000:3b:00.0" in tree.stdout
    document = json.loads(run(*root, "-o", "json", state=tmp_path).stdout)
    assert len(document["devices"]) == 28
    assert len(document["distances"]) == 66
    assert document["devices"][7]["class"] == "0x020700"
    assert yaml.safe_load(run(*root, "-o", "yaml", state=tmp_path).stdout) == document
    picture = tmp_path / "host.svg"
    drawn = run(*root, "--svg", picture, state=tmp_path)
    assert (drawn.returncode, drawn.stdout) == (0, "")
    ET.parse(picture)


def test_damage_is_reported_on_stderr_with_the_tree(tmp_path: Path) -> None:
    listing = tmp_path / "sys/bus/pci/devices"
    listing.mkdir(parents=True)
    (listing / "0000:01:00.0").symlink_to("../../../devices/pci0000:00/0000:01:00.0")
    done = run("--sysfs-root", tmp_path / "sys", state=tmp_path)
    assert done.returncode == 0
    assert done.stderr == "problem: 0000:01:00.0: the link leads nowhere\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--sysfs-root", "/no/such/place"), 2, "dra-agent: /no/such/place: cannot open this as sysfs: no such file"),
        (("--simulate", "toaster"), 2, "dra-agent: unknown profile 'toaster'"),
        (
            ("--simulate", "cpu-only", "--svg", "/no/such/place"),
            1,
            "dra-agent: /no/such/place: cannot write the picture",
        ),
        (("-o", "xml"), 2, "invalid choice"),
    ],
)
def test_errors_are_reported_once(arguments: tuple[str, ...], code: int, message: str, tmp_path: Path) -> None:
    done = run(*arguments, state=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("content", [b"", b"\n10de  NVIDIA Corporation\n\t2330  GH100 [H100 SXM5 80GB]\n"])
def test_products_have_the_names_of_devices_with_and_without_pci_ids(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(PciIds, "of_this_machine", classmethod(lambda cls: PciIds(content)))
    assert main(["topology", "--simulate", "dgx-h100", "--state-dir", str(tmp_path)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "0000:1b:00.0" in line)
    assert "10de:2330  NVIDIA H100 80GB HBM3" in line


def test_the_picture_of_the_readme_has_the_names_of_devices() -> None:
    picture = (Path(__file__).resolve().parents[2] / "docs/images/dgx-h100.svg").read_text()
    assert picture.count(">NVIDIA H100 80GB HBM3</text>") == 8


def with_functions(directory: Path, physical: int, virtual: int) -> Path:
    """Return the sysfs of a host with cards of which each has virtual functions, all below one bridge."""
    root = directory / "sys"
    listing = root / "bus/pci/devices"
    listing.mkdir(parents=True)
    (root / "devices/system/node").mkdir(parents=True)

    def add(address: str, files: dict[str, str]) -> Path:
        place = root / "devices/pci0000:00" / address
        place.mkdir(parents=True)
        known = {"class": "0x020000", "vendor": "0x8086", "device": "0x1592", "numa_node": "0", **files}
        for name, text in known.items():
            (place / name).write_text(f"{text}\n")
        (listing / address).symlink_to(f"../../../devices/pci0000:00/{address}")
        return place

    for card in range(physical):
        address = f"{card:04x}:01:00.0"
        own = add(address, {"sriov_totalvfs": str(virtual), "sriov_numvfs": str(virtual)})
        for index in range(virtual):
            other = f"{card:04x}:{2 + index // 256:02x}:{index % 256 // 8:02x}.{index % 8}"
            (add(other, {}) / "physfn").symlink_to(f"../{address}")
            (own / f"virtfn{index}").symlink_to(f"../{other}")
    return root


def test_distances_of_two_thousand_functions_are_summarized(tmp_path: Path) -> None:
    root = ("--sysfs-root", with_functions(tmp_path, physical=4, virtual=512))
    done = run(*root, "-o", "json", state=tmp_path)
    document = json.loads(done.stdout)
    assert len(document["devices"]) == 4 * 513
    assert len(document["distances"]) == 6
    assert document["omitted"].startswith("distances of 2048 virtual functions")
    assert len(done.stdout) < 8 << 20


def test_distances_of_many_cards_have_a_limit_and_a_flag(tmp_path: Path) -> None:
    root = ("--sysfs-root", with_functions(tmp_path, physical=200, virtual=0))
    document = json.loads(run(*root, "-o", "json", state=tmp_path).stdout)
    assert len(document["distances"]) == 128 * 127 // 2
    assert document["omitted"] == "distances of 72 more functions; --all-distances lists them"
    every = json.loads(run(*root, "-o", "json", "--all-distances", state=tmp_path).stdout)
    assert len(every["distances"]) == 200 * 199 // 2
    assert "omitted" not in every
