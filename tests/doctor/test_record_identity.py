"""A recording without identity: the same value by the same replacement everywhere, and nothing of the original."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest

import dra_simulate
from dra_agent.cli.main import main
from dra_agent.doctor.record import record
from dra_agent.doctor.record.identity import Replacements
from dra_agent.host import Host
from dra_agent.recording import Entry, parse_tree
from recordings.conclusions import PARTITIONED, anonymous, conclusions

KEY = b"key"
MAC = r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}"
SMI = """<?xml version="1.0" ?>
<nvidia_smi_log>
  <gpu id="00000000:00:04.0">
    <product_name>Tesla T4</product_name>
    <serial>1324221098765</serial>
    <uuid>{uuid}</uuid>
    <pdi>0x7a1b2c3d4e5f6071</pdi>
    <platformInfo><chassis_serial_number>ABC-12345</chassis_serial_number><host_id>1</host_id></platformInfo>
    <board_part_number>900-2G183-6300-T00</board_part_number>
    <processes><process_info><pid>4711</pid><type>C</type><process_name>/home/jane/train</process_name></process_info>
    </processes>
  </gpu>
</nvidia_smi_log>
"""


def texts(recording: Path) -> dict[str, str]:
    return {str(path.relative_to(recording)): path.read_text() for path in recording.rglob("*") if path.is_file()}


def identities(host: Host) -> set[str]:
    """Everything that identifies a simulated host."""
    found: set[str] = set()
    for path in (host.sysfs / "class/net").iterdir():
        found.add((path / "address").read_text().strip())
    for path in host.sysfs.rglob("unique_id"):
        number = int(path.read_text(), 16)
        found |= {f"{number:x}", str(number)}
    state = host.sysfs.parent / "lib/nvml.json"
    text = state.read_text() if state.exists() else ""
    return found | set(re.findall(r'"uuid": ?"([^"]+)"', text))


@pytest.mark.parametrize("profile", ["mixed", "mi300x", "dgx-h100", "vm-1gpu"])
def test_nothing_of_the_original_is_left(profile: str, tmp_path: Path) -> None:
    host = dra_simulate.build(profile, tmp_path / "host")
    record(host, tmp_path / "recording")
    original = identities(host)
    assert original
    written = texts(tmp_path / "recording")
    left = {f"{name}: {value}" for name, text in written.items() for value in original if value in text}
    # Structures and byte strings are written in hexadecimal.
    raw = written.get("nvml.jsonl", "")
    left |= {value for value in original if value.encode().hex() in raw}
    assert not left
    again = dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")
    for settings in (None, PARTITIONED):
        assert anonymous(conclusions(again, settings)) == anonymous(conclusions(host, settings))


def test_the_same_value_has_one_replacement(tmp_path: Path) -> None:
    host = dra_simulate.build("vm-1gpu", tmp_path / "host")
    host.nvidia_smi.write_text(  # type: ignore[union-attr]
        "#!/bin/sh\ncat <<'END'\n" + SMI.format(uuid=next(iter(re.findall('GPU-[^"]+', _state(host))))) + "END\n"
    )
    record(host, tmp_path / "recording")
    written = texts(tmp_path / "recording")
    in_smi = re.findall(r"<uuid>(GPU-.+)</uuid>", written["tools/nvidia-smi.xml"])
    in_calls = re.findall(r'"nvmlDeviceGetUUID","args":\[[^\]]*\]\}\],"value":"([^"]+)"', written["nvml.jsonl"])
    in_proc = re.findall(r"GPU UUID: \\t (GPU-[0-9a-f-]+)", written["tree.jsonl"])
    assert in_smi and set(in_smi) == set(in_calls) == set(in_proc)
    assert re.fullmatch(r"GPU-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", in_smi[0])
    for private in ("1324221098765", "7a1b2c3d4e5f6071", "ABC-12345", "jane"):
        assert private not in written["tools/nvidia-smi.xml"]
    assert "900-2G183-6300-T00" in written["tools/nvidia-smi.xml"] and "<host_id>" in written["tools/nvidia-smi.xml"]


def _state(host: Host) -> str:
    return (host.sysfs.parent / "lib/nvml.json").read_text()


def test_with_identity_keeps_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--simulate", "mixed", "--state-dir", str(tmp_path / "state")]
    assert main(["doctor", *flags, "--record", str(tmp_path / "kept"), "--with-identity"]) == 0
    assert "with its identity" in capsys.readouterr().out
    assert main(["doctor", *flags, "--record", str(tmp_path / "removed"), "-o", "json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["identity"] is False
    kept, removed = (re.findall(MAC, texts(tmp_path / name)["tree.jsonl"]) for name in ("kept", "removed"))
    assert len(kept) == len(removed) and not set(kept) & set(removed)
    assert main(["doctor", *flags, "--with-identity"]) == 2


def test_addresses_are_local_and_groups_stay() -> None:
    replace = Replacements(KEY)
    address = replace.text("3c:ec:ef:12:34:56")
    assert re.fullmatch(MAC, address) and int(address[:2], 16) & 3 == 2
    assert replace.text("enx3cecef123456") == "enx" + address.replace(":", "")
    for same in ("ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "01:80:c2:00:00:0e", "0000:3b:00.0", "00000000:1B:00.0"):
        assert replace.text(same) == same


def test_guids_of_infiniband_have_one_replacement_in_all_notations() -> None:
    replace = Replacements(KEY)
    guid = replace.text("b83f:d203:00c2:f6a8")
    assert re.fullmatch(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}", guid) and guid != "b83f:d203:00c2:f6a8"
    digits = guid.replace(":", "")
    octets = ":".join(digits[at : at + 2] for at in range(0, 16, 2))
    prefix = "80:00:00:48:fe:80:00:00:00:00:00:00"
    assert replace.text(f"{prefix}:b8:3f:d2:03:00:c2:f6:a8") == f"{prefix}:{octets}"
    assert replace.text("fe80:0000:0000:0000:b83f:d203:00c2:f6a8") == f"fe80:0000:0000:0000:{guid}"
    assert replace.text("ibxb83fd20300c2f6a8") == f"ibx{digits}"
    assert replace.text("Device Serial Number b8-3f-d2-03-00-c2-f6-a8").endswith(octets.replace(":", "-"))


def test_numbers_have_one_replacement_in_all_notations() -> None:
    replace = Replacements(KEY)
    number = 0x18F68E602B8A790F
    replace.learn_number(number)
    other = replace.number(number)
    assert other != number and len(f"{other:x}") == 16
    assert replace.text(f"{number} 0x{number:x} {number:016x}") == f"{other} 0x{other:x} {other:016x}"
    small = 0x00F68E602B8A790F
    replace.learn_number(small)
    assert replace.text(f"{small:016x} {small:x}") == f"{replace.number(small):016x} {replace.number(small):x}"
    assert replace.number(0) == 0


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("GPU[0]\t\t: Unique ID: 0x18f68e602b8a790f", "Unique ID: 0x"),
        ("GPU[0]\t\t: Serial Number: 692251001124", "Serial Number: "),
        ('    "asic_serial": "0x18F68E602B8A790F",', '"asic_serial": "0x'),
        ('"Serial Number": "692251001124", "x": 1', '"x": 1'),
        ("\t\t\t[SN] Serial number: MT2042X12345", "[SN] Serial number: MT"),
        ("\t\t\t[V3] Vendor specific: 9b1cf4ab3a0aeb118000b8cef6a1b2c3", "[V3] Vendor specific: "),
        ("<gpu_fabric_guid>0x1a2b3c4d5e6f7081</gpu_fabric_guid>", "<gpu_fabric_guid>0x"),
    ],
)
def test_values_behind_labels_are_replaced(line: str, kept: str) -> None:
    replace = Replacements(KEY)
    replace.learn_from(line)
    changed = replace.tool_output(line)
    value = max(re.findall(r"[0-9A-Za-z]*[0-9]{3}[0-9A-Za-z]*", line), key=len)
    assert value not in changed and len(changed) == len(line)
    assert kept.rstrip("MT") in changed
    assert replace.tool_output(line) == changed


def test_the_name_of_the_host_is_removed_from_outputs_of_tools() -> None:
    replace = Replacements(KEY, "trainer-17.example.com")
    text = replace.tool_output("node trainer-17.example.com (trainer-17), not trainer-177")
    assert re.fullmatch(r"node host-[0-9a-f]{8} \(host-[0-9a-f]{8}\), not trainer-177", text)
    assert Replacements(KEY, "gpu").tool_output("a gpu") == "a gpu", "a short name is a word of many other texts"


def test_two_recordings_have_different_replacements(tmp_path: Path) -> None:
    host = dra_simulate.build("cpu-only", tmp_path / "host")
    record(host, tmp_path / "one")
    record(host, tmp_path / "other")
    one, other = (set(re.findall(MAC, texts(tmp_path / name)["tree.jsonl"])) for name in ("one", "other"))
    assert one and not one & other


def test_routes_lose_their_addresses(tmp_path: Path) -> None:
    host = dra_simulate.build("cpu-only", tmp_path / "host")
    name = next((host.sysfs / "class/net").iterdir()).name
    (host.proc / "net").mkdir()
    (host.proc / "net/route").write_text(
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        f"{name}\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        f"{name}\t0002A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
    )
    (host.proc / "net/ipv6_route").write_text(
        f"{'0' * 32} 00 {'0' * 32} 00 fe80{'0' * 20}12345678 00000400 00000001 00000000 00000003 {name:>8}\n"
        f"2001{'0' * 28} 40 {'0' * 32} 00 {'0' * 32} 00000100 00000001 00000000 00000001 {name:>8}\n"
    )
    record(host, tmp_path / "recording")
    entries = _entries(tmp_path / "recording")
    assert "A8C0" not in (entries["proc/net/route"].text or "") and name in (entries["proc/net/route"].text or "")
    assert "12345678" not in (entries["proc/net/ipv6_route"].text or "")
    again = dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")
    names = [[device["name"] for device in conclusions(one)["devices"]] for one in (host, again)]
    assert names[0] == names[1]


def test_an_interface_without_a_utf8_name_is_omitted_and_its_routes_have_no_address(tmp_path: Path) -> None:
    host = dra_simulate.build("cpu-only", tmp_path / "host")
    name = next((host.sysfs / "class/net").iterdir()).name
    strange = os.fsdecode(b"eth\xff")
    (host.sysfs / "class/net" / strange).symlink_to(f"../../devices/virtual/net/{strange}")
    (host.sysfs / "class/net" / name / f"upper_{strange}").symlink_to(f"../../{strange}")
    (host.sysfs / "class/net" / name / "master").symlink_to(f"../../{strange}")
    (host.proc / "net").mkdir()
    line = "\t0002A8C0\t0102A8C0\t0003\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
    (host.proc / "net/route").write_bytes(os.fsencode(f"Iface\tDestination\n{name}{line}{strange}{line}"))
    manifest = record(host, tmp_path / "recording")
    text = (tmp_path / "recording/tree.jsonl").read_text()
    assert "A8C0" not in text and strange not in text
    assert b"A8C0".hex() not in text, "nor as bytes"
    entries = _entries(tmp_path / "recording")
    assert [line.split("\t")[0] for line in (entries["proc/net/route"].text or "").splitlines()[1:]] == [name]
    omitted = [one.where for one in manifest.omitted if "UTF-8" in one.reason]
    assert len(omitted) == 3 and all(where.isprintable() for where in omitted)
    dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")


def _entries(recording: Path) -> dict[str, Entry]:
    return {entry.path: entry for entry in parse_tree((recording / "tree.jsonl").read_bytes(), "tree")}


def test_the_id_of_a_fabric_is_replaced_inside_of_a_structure(tmp_path: Path) -> None:
    host = dra_simulate.build("dgx-h100", tmp_path / "host")
    cluster = "5a4f3e2d-1c0b-4a99-8877-665544332211"
    state = host.sysfs.parent / "lib/nvml.json"
    state.write_text(state.read_text().replace("00000000-0000-0000-0000-000000000000", cluster))
    expected = anonymous(conclusions(host))
    assert "fabricDomain" in str(expected)
    record(host, tmp_path / "recording")
    assert cluster.replace("-", "") not in texts(tmp_path / "recording")["nvml.jsonl"]
    again = dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")
    assert anonymous(conclusions(again)) == expected
