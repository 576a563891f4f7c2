"""A recording is data from elsewhere: what is torn, hostile or of another format is refused, and the place is named."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dra_simulate
from dra_agent import recording
from dra_agent.cli.main import main
from dra_agent.doctor.record import record
from dra_agent.errors import PermanentError, UsageError
from dra_agent.nvml import call_log
from dra_simulate.recording import Recording, library_state


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    record(dra_simulate.build("vm-1gpu", folder / "host"), folder / "recording")
    return folder / "recording"


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def change_manifest(folder: Path, **values: Any) -> None:
    path = folder / "manifest.json"
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **values}))


def replace_content(folder: Path, name: str, content: bytes) -> None:
    """Replace a file together with its size and digest, as one does who means harm."""
    (folder / name).write_bytes(content)
    files = msgspec.json.decode((folder / "manifest.json").read_bytes())["files"]
    changed = {"path": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change_manifest(folder, files=[changed if file["path"] == name else file for file in files])


def add_entry(folder: Path, entry: dict[str, Any]) -> None:
    replace_content(folder, "tree.jsonl", (folder / "tree.jsonl").read_bytes() + msgspec.json.encode(entry) + b"\n")


def refusal(folder: Path, tmp_path: Path) -> str:
    with pytest.raises(UsageError) as refused:
        dra_simulate.build(str(folder), tmp_path / "host")
    assert not (tmp_path / "host").exists(), "nothing is written before everything is checked"
    return str(refused.value)


def become_link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


TORN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "no manifest.json, which is written last"),
    "half a manifest": (
        lambda folder: os.truncate(folder / "manifest.json", 100),
        "manifest.json: not a manifest",
    ),
    "a missing file": (lambda folder: (folder / "tree.jsonl").unlink(), "tree.jsonl: missing"),
    "half a file": (lambda folder: os.truncate(folder / "nvml.jsonl", 1000), "nvml.jsonl: has 1000 bytes instead of"),
    "another content": (
        lambda folder: (folder / "nvml.jsonl").write_bytes((folder / "nvml.jsonl").read_bytes().replace(b"T4", b"T5")),
        "nvml.jsonl: the content is not the recorded one (sha256 differs)",
    ),
    "another format": (
        lambda folder: change_manifest(folder, format=2),
        "has format 2; this version of the agent reads",
    ),
    "no format": (lambda folder: (folder / "manifest.json").write_text("{}"), "missing required field `format`"),
    "a manifest that is deeply nested": (
        lambda folder: (folder / "manifest.json").write_text('{"format":' + "[" * 100_000),
        "manifest.json: not a manifest",
    ),
    "a manifest of another encoding": (
        lambda folder: (folder / "manifest.json").write_bytes(b'{"format":1,"agent":"\xff"}'),
        "manifest.json: not a manifest",
    ),
    "too many files": (
        lambda folder: change_manifest(folder, files=[{"path": "a", "size": 0, "sha256": ""}] * 65),
        "lists more than 64 files",
    ),
    "a huge manifest": (
        lambda folder: os.truncate(folder / "manifest.json", 2 << 20),
        "manifest.json: cannot be read: larger than",
    ),
    "a manifest that is a link": (
        lambda folder: become_link(folder / "manifest.json", (folder / "manifest.json").rename(folder / "m")),
        "manifest.json: cannot be read",
    ),
    "no tree": (lambda folder: change_manifest(folder, files=[]), "manifest.json: lists no tree.jsonl"),
    "a file that is a device": (
        lambda folder: become_link(folder / "nvml.jsonl", Path("/dev/zero")),
        "nvml.jsonl: cannot be read",
    ),
    "a file that is a pipe": (
        lambda folder: become_pipe(folder / "nvml.jsonl"),
        "nvml.jsonl: cannot be read: not a plain file",
    ),
}


@pytest.mark.parametrize(("damage", "message"), TORN.values(), ids=TORN.keys())
def test_a_torn_recording_is_refused(
    copy: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(copy)
    assert message in refusal(copy, tmp_path)


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "tools/../../x", "manifest.json", "a/b", ".hidden", "tools/", "", "a\0b", "x" * 200]
)
def test_the_manifest_names_only_files_of_the_recording(copy: Path, tmp_path: Path, path: str) -> None:
    change_manifest(copy, files=[{"path": path, "size": 0, "sha256": ""}])
    message = refusal(copy, tmp_path)
    assert "manifest.json: files[0]: not the path of a file of a recording" in message


@pytest.mark.parametrize("size", [-1, 1 << 40])
def test_sizes_have_a_bound(copy: Path, tmp_path: Path, size: int) -> None:
    change_manifest(copy, files=[{"path": "tree.jsonl", "size": size, "sha256": ""}])
    assert "tree.jsonl: larger than 64 MiB" in refusal(copy, tmp_path)


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "above the root": ({"path": "sys/../../x", "text": ""}, "not a plain relative path"),
    "an absolute path": ({"path": "/etc/passwd", "text": ""}, "not below sys, proc, dev"),
    "another folder": ({"path": "lib/libnvidia-ml.so.1", "text": ""}, "not below sys, proc, dev"),
    "the top folder": ({"path": "sys", "link": "../x"}, "not below sys, proc, dev"),
    "an empty part": ({"path": "sys//x", "text": ""}, "not a plain relative path"),
    "a zero byte": ({"path": "sys/a\0b", "text": ""}, "not a plain relative path"),
    "an absolute link": ({"path": "sys/x", "link": "/etc"}, "a link that leaves the tree"),
    "a link above the root": ({"path": "sys/x", "link": "../../etc"}, "a link that leaves the tree"),
    "a link into another tree": ({"path": "sys/x/y", "link": "../../proc/x"}, "a link that leaves the tree"),
    "a link that goes up late": ({"path": "sys/x", "link": "a/../../../etc"}, "a link that leaves the tree"),
    "a link that goes up behind a name": ({"path": "sys/x/y/z/l", "link": "n/../../w"}, "a link that leaves the tree"),
    "an empty link": ({"path": "sys/x", "link": ""}, "a link that leaves the tree"),
    "a device in /sys": ({"path": "sys/x", "node": [1, 3, 438]}, "not a device node of /dev"),
    "a number of a device": ({"path": "dev/x", "node": [-1, 3, 438]}, "not a device node of /dev"),
    "a file in /dev": ({"path": "dev/sda", "text": "x"}, "a file in /dev"),
    "a large file": ({"path": "sys/x", "text": "x" * 65537}, "more than 64 KiB"),
    "a long line": ({"path": "sys/x", "text": "x" * 200_000}, "a line is too long"),
    "deep nesting": ({"path": "sys/" + "a/" * 40 + "x", "text": ""}, "nested too deeply"),
    "a long name": ({"path": "sys/" + "a" * 300, "text": ""}, "not a plain relative path"),
    "two kinds": ({"path": "sys/x", "text": "", "link": "y"}, "not exactly one of text, data, link, folder and node"),
    "no kind": ({"path": "sys/x"}, "not exactly one of text, data, link, folder and node"),
    "bytes that are not hexadecimal": ({"path": "sys/x", "data": "xyz"}, "content that is not hexadecimal"),
    "a path below a link": ({"path": "sys/bus/pci/devices/0000:00:04.0/x", "text": ""}, "used by another entry"),
    "a file in place of a folder": ({"path": "sys/bus/pci", "text": ""}, "used by another entry"),
}


@pytest.mark.parametrize(("entry", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_tree_is_refused(copy: Path, tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    lines = (copy / "tree.jsonl").read_bytes().count(b"\n")
    add_entry(copy, entry)
    refused = refusal(copy, tmp_path)
    assert message in refused and f"tree.jsonl:{lines + 1}: " in refused


def test_a_tree_has_a_bound(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_ENTRIES", 10)
    assert "tree.jsonl:11: more than 10 entries" in refusal(copy, tmp_path)


def test_a_torn_line_is_named(copy: Path, tmp_path: Path) -> None:
    replace_content(copy, "tree.jsonl", b'{"path":"sys/x","text":""}\n{"path":"sys/y"')
    assert "tree.jsonl:2: the last line is torn" in refusal(copy, tmp_path)
    replace_content(copy, "tree.jsonl", b'{"path":"sys/x","text":""}\n')
    replace_content(copy, "nvml.jsonl", b'{"name":"nvmlInit","args":[]}\n{"name"')
    assert "nvml.jsonl:2: the last line is torn" in refusal(copy, tmp_path)


CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "a name": ({"name": "../x", "args": []}, "not the name of a function"),
    "a value": ({"name": "f", "args": [{"x": 1}]}, "is not a value"),
    "a type": ({"name": "f", "args": [{"d": ["__import__('os')", ""]}]}, "is not a value"),
    "a long array": ({"name": "f", "args": [], "value": {"d": ["c_int[99999999]", ""]}}, "is not a value"),
    "an array that is longer than its content": (
        {"name": "f", "args": [], "value": {"d": ["c_int[9999][9999]", "00"]}},
        "is not a value",
    ),
    "bytes": ({"name": "f", "args": [], "value": {"b": "zz"}}, "is not a value"),
    "a large number": ({"name": "f", "args": [1 << 63], "value": -(1 << 63)}, ""),
    "an argument that does not exist": ({"name": "f", "args": [], "filled": [[0, "00"]]}, "does not exist"),
    "a duration": ({"name": "f", "args": [], "ms": -1.0}, "not a duration"),
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS.keys())
def test_a_hostile_call_is_refused(call: dict[str, Any], message: str) -> None:
    content = msgspec.json.encode(call) + b"\n"
    if not message:
        assert call_log.parse(content)[0].name == "f"
        return
    with pytest.raises(call_log.CallLogError, match=message) as refused:
        call_log.parse(b'{"name":"g","args":[]}\n' + content)
    assert refused.value.line == 2


@given(data=st.data())
def test_calls_that_do_not_fit_together_are_refused(original: Path, data: st.DataObject) -> None:
    calls = [msgspec.json.decode(line) for line in (original / "nvml.jsonl").read_bytes().splitlines()]
    wanted = (
        "HandleByPciBusId",
        "MigMode",
        "MemoryInfo",
        "FabricInfoV",
        "RemappedRows",
        "UUID",
        "EccMode",
        "Capability",
    )
    changed = [call for call in calls if call["name"].endswith(wanted)]
    call = data.draw(st.sampled_from(changed))
    call.update(
        data.draw(st.dictionaries(st.sampled_from(["args", "value", "filled"]), VALUES, min_size=1, max_size=2))
    )
    try:
        content = b"".join(msgspec.json.encode(call) + b"\n" for call in calls)
        parsed = call_log.parse(content)
    except (call_log.CallLogError, OverflowError):
        return
    recorded = Recording(original)
    recorded.calls = parsed
    try:
        library_state(recorded)
    except UsageError as refused:
        assert str(refused.where).endswith("nvml.jsonl")


def test_a_deeply_nested_call_is_refused() -> None:
    for depth in (20, 100_000):
        with pytest.raises(call_log.CallLogError):
            call_log.parse(b'{"name":"f","args":' + b"[" * depth + b"]" * depth + b"}\n")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("bltpdrx"), inner, max_size=2)
        | st.tuples(st.sampled_from("bltpdr"), inner).map(lambda pair: {pair[0]: pair[1]})
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["name", "args", "value", "refused", "filled", "ms", "x"]), VALUES, max_size=6))
def test_any_call_is_read_or_refused(call: dict[str, Any]) -> None:
    try:
        found = call_log.parse(msgspec.json.encode({"name": "f", "args": [], **call}) + b"\n")
    except (call_log.CallLogError, OverflowError):
        return
    assert call_log.parse(call_log.encode(found)) == found


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    for read in (call_log.parse, lambda text: recording.parse_tree(text, "tree")):
        try:
            read(content)
        except (call_log.CallLogError, UsageError):
            continue


PATHS = st.lists(st.sampled_from(["sys", "dev", "a", "b", "..", ".", "", "c\0"]), max_size=6).map("/".join)
ENTRIES = st.fixed_dictionaries(
    {"path": PATHS},
    optional={
        "text": st.text(max_size=4),
        "data": st.sampled_from(["00", "0"]),
        "link": PATHS,
        "folder": st.booleans(),
        "node": st.just([1, 2, 3]),
    },
)


@given(st.lists(ENTRIES, max_size=8))
def test_entries_of_a_tree_stay_below_its_root(entries: list[dict[str, Any]]) -> None:
    content = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
    try:
        found = recording.parse_tree(content, "tree")
    except UsageError as refused:
        assert refused.where is not None and refused.where.startswith("tree:")
        return
    places = {entry.path for entry in found if not entry.folder}
    for entry in found:
        parts = entry.path.split("/")
        assert parts[0] in ("sys", "proc", "dev") and not {"", ".", ".."} & set(parts)
        assert not places & {"/".join(parts[:length]) for length in range(1, len(parts))}
        if entry.link is not None:
            target = os.path.normpath(os.path.join("/root", os.path.dirname(entry.path), entry.link))  # noqa: PTH118, PTH120
            assert target.startswith(f"/root/{parts[0]}")


LINK_NAMES = st.sampled_from(["a", "b", "c"])
LINKS = st.fixed_dictionaries(
    {
        "path": st.lists(LINK_NAMES, min_size=1, max_size=4).map(lambda names: "/".join(["sys", *names])),
        "link": st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=5).map("/".join),
    }
)


def test_a_link_through_a_link_is_refused(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("of root")
    add_entry(copy, {"path": "sys/top", "folder": True})
    add_entry(copy, {"path": "sys/a/b/c/near", "link": "../../../top"})
    add_entry(copy, {"path": "sys/a/b/c/far", "link": "near/../../../outside"})
    assert "sys/a/b/c/far: a link that leaves the tree" in refusal(copy, tmp_path).replace("'", "")


@given(st.lists(LINKS, max_size=6))
@example(
    [
        {"path": "sys/c/a", "link": "b"},
        {"path": "sys/a/a/a/a", "link": "../../../c"},
        {"path": "sys/a/a/a/b", "link": "a/../../../.."},
    ]
)
def test_no_chain_of_links_leaves_its_folder(links: list[dict[str, str]]) -> None:
    accepted: list[recording.Entry] = []
    for link in links:
        with suppress(UsageError):
            accepted = recording.parse_tree(
                b"".join(msgspec.json.encode(entry) + b"\n" for entry in [*accepted, link]), "tree"
            )
    with TemporaryDirectory() as directory:
        root = Path(directory).resolve()
        for entry in accepted:
            (root / entry.path).parent.mkdir(parents=True, exist_ok=True)
            (root / entry.path).symlink_to(str(entry.link))
        for entry in accepted:
            with suppress(OSError, RuntimeError):
                assert (root / entry.path).resolve().is_relative_to(root / "sys")


@given(
    st.dictionaries(st.sampled_from(["format", "agent", "created", "kernel", "files", "omitted", "drivers"]), VALUES)
)
def test_any_manifest_is_read_or_refused(values: dict[str, Any]) -> None:
    path = Path("manifest.json")
    try:
        manifest = recording.decode_manifest(msgspec.json.encode(values), path)
    except UsageError as refused:
        assert refused.where == "manifest.json"
    except OverflowError:
        return  # a number that JSON of this encoder does not have
    else:
        assert manifest.format == 1


def test_the_command_prints_one_message(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "tree.jsonl").write_text("")
    assert main(["devices", "--simulate", str(copy)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{copy}/tree.jsonl: has 0 bytes" in error


def test_a_directory_without_a_manifest_is_not_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--simulate", f"{tmp_path}/nothing"]) == 2
    assert "not a directory; name the directory of a recording" in capsys.readouterr().err


def test_nodes_become_files(original: Path, tmp_path: Path) -> None:
    host = dra_simulate.build(str(original), tmp_path / "host")
    assert (host.dev / "nvidia0").is_file() and not (host.dev / "nvidia0").is_char_device()


def test_a_host_of_another_recording_is_not_replaced(original: Path, copy: Path, tmp_path: Path) -> None:
    dra_simulate.build(str(original), tmp_path / "host")
    assert dra_simulate.build(str(copy), tmp_path / "host"), "a copy is the same recording"
    change_manifest(copy, created="later")
    with pytest.raises(PermanentError, match="holds another simulated host"):
        dra_simulate.build(str(copy), tmp_path / "host")


def test_a_recording_is_written_whole_or_not(original: Path, tmp_path: Path) -> None:
    host = dra_simulate.build("cpu-only", tmp_path / "host")
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").touch()
    with pytest.raises(PermanentError, match="not an empty directory"):
        record(host, tmp_path / "used")
    (tmp_path / "empty").mkdir()
    record(host, tmp_path / "empty")
    assert Recording(tmp_path / "empty").calls == []
    assert not list(tmp_path.glob(".*partial"))
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(PermanentError, match="not an empty directory"):
        record(host, tmp_path / "link")
