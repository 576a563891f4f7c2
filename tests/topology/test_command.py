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
