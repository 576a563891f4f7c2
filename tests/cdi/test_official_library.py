"""The agent's reading of CDI directories compared with the official library, per file and per edit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_agent.cdi.model import ContainerEdits, Device, Spec, encode
from dra_agent.cdi.registry import applied_edits, load_registry
from dra_agent.cdi.text import decode
from dra_agent.errors import PermanentError

# The first build of the official library takes a while.
ENV = {"env": ["A=1"]}


def spec(version: str = "0.3.0", kind: str = "vendor.com/class", **changes: Any) -> dict[str, Any]:
    return {"cdiVersion": version, "kind": kind, "devices": [{"name": "dev0", "containerEdits": ENV}], **changes}


def with_edits(version: str, **edits: Any) -> dict[str, Any]:
    return spec(version, devices=[{"name": "dev0", "containerEdits": edits}])


# Cases on which all tested versions of the library agree.
CASES: dict[str, Any] = {
    "plain": spec(),
    "with-v": spec("v0.3.0"),
    "old-version": spec("0.2.0"),
    "unknown-version": spec("0.9.0"),
    "no-version": {key: value for key, value in spec().items() if key != "cdiVersion"},
    "no-devices": spec(devices=[]),
    "no-slash": spec(kind="vendor"),
    "vendor-digit": spec(kind="3vendor/class"),
    "vendor-end": spec(kind="vendor-/class"),
    "class-dot-low": spec(kind="vendor/cl.ass"),
    "class-dot": spec("0.6.0", kind="vendor/cl.ass"),
    "unknown-field": spec(extra=1),
    "unknown-edit": with_edits("1.0.0", devicesNodes=[]),
    "empty-edits": with_edits("1.0.0"),
    "empty-lists": with_edits("1.0.0", env=[], mounts=[]),
    "null-edits": with_edits("1.0.0", env=None),
    "twice": spec(devices=[{"name": "a", "containerEdits": ENV}, {"name": "a", "containerEdits": ENV}]),
    "digit-low": spec("0.4.0", devices=[{"name": "0", "containerEdits": ENV}]),
    "digit": spec("0.5.0", devices=[{"name": "0", "containerEdits": ENV}]),
    "name-colon": spec(devices=[{"name": "a:b", "containerEdits": ENV}]),
    "name-slash": spec(devices=[{"name": "a/b", "containerEdits": ENV}]),
    "name-end": spec(devices=[{"name": "a.", "containerEdits": ENV}]),
    "env-no-equals": with_edits("0.3.0", env=["A"]),
    "env-no-name": with_edits("0.3.0", env=["=1"]),
    "node": with_edits("0.3.0", deviceNodes=[{"path": "/dev/x", "type": "c", "major": 1}]),
    "node-host-low": with_edits("0.4.0", deviceNodes=[{"path": "/dev/x", "hostPath": "/dev/y"}]),
    "node-host": with_edits("0.5.0", deviceNodes=[{"path": "/dev/x", "hostPath": "/dev/y", "type": "c", "major": 1}]),
    "node-type": with_edits("0.5.0", deviceNodes=[{"path": "/dev/x", "type": "q"}]),
    "node-no-path": with_edits("0.5.0", deviceNodes=[{"type": "c"}]),
    "node-permissions": with_edits("0.5.0", deviceNodes=[{"path": "/dev/x", "permissions": "rx"}]),
    "mount": with_edits("0.3.0", mounts=[{"hostPath": "/a", "containerPath": "/b"}]),
    "mount-type-low": with_edits("0.3.0", mounts=[{"hostPath": "/a", "containerPath": "/b", "type": "bind"}]),
    "mount-type": with_edits("0.4.0", mounts=[{"hostPath": "/a", "containerPath": "/b", "type": "bind"}]),
    "mount-no-host": with_edits("0.3.0", mounts=[{"containerPath": "/b"}]),
    "hook": with_edits("0.3.0", hooks=[{"hookName": "createContainer", "path": "/bin/x", "args": ["x"]}]),
    "hook-name": with_edits("0.3.0", hooks=[{"hookName": "create", "path": "/bin/x"}]),
    "hook-env": with_edits("0.3.0", hooks=[{"hookName": "prestart", "path": "/bin/x", "env": ["Q"]}]),
    "annotation-low": spec("0.5.0", annotations={"a/b": "c"}),
    "annotation": spec("0.6.0", annotations={"a.b/c": "d"}),
    "annotation-key": spec("0.6.0", annotations={"a b": "c"}),
    "gids-low": with_edits("0.6.0", additionalGids=[1]),
    "gids": with_edits("0.7.0", additionalGids=[1]),
    "rdt-low": with_edits("0.6.0", intelRdt={"closID": "a"}),
    "rdt": with_edits("0.7.0", intelRdt={"closID": "a", "l3CacheSchema": "x"}),
    "rdt-dots": with_edits("0.7.0", intelRdt={"closID": ".."}),
    "wrong-type": spec(devices={"name": "a"}),
    "number-for-text": with_edits("0.3.0", env=[{"A": 1}]),
}
RAW = {
    "not-json": "{",
    "empty": "",
    "list": "[]",
    "repeated-key": '{"cdiVersion": "0.3.0", "cdiVersion": "0.3.0", "kind": "v/c", "devices": [{"name": "d",'
    ' "containerEdits": {"env": ["A=1"]}}]}',
    "yaml-in-json": "cdiVersion: 0.3.0\nkind: yaml.com/class\ndevices: [{name: d, containerEdits: {env: [A=1]}}]\n",
}


def test_files_are_accepted_and_refused_like_the_official_library(oracle: Any, tmp_path: Path) -> None:
    for name, content in CASES.items():
        directory = tmp_path / name
        directory.mkdir()
        (directory / "spec.json").write_text(json.dumps(content))
    for name, text in RAW.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "spec.json").write_text(text)
    for name in [*CASES, *RAW]:
        if name == "no-devices" and oracle.version == "0.8":
            continue  # that version accepts a file without devices; nothing can be injected
        registry = load_registry([tmp_path / name])
        official = oracle([tmp_path / name])
        refused = bool(official["errors"])
        assert bool(registry.files[0].refused) == refused, (name, registry.files[0].refused, official["errors"])
        assert sorted(registry.devices) == (official["devices"] or []), name


def test_conflicts_and_priorities_match_the_official_library(oracle: Any, tmp_path: Path) -> None:
    low, high = tmp_path / "low", tmp_path / "high"
    for directory in (low, high):
        directory.mkdir()

    def put(path: Path, *names: str, value: str) -> None:
        devices = [{"name": name, "containerEdits": {"env": [f"{name}={value}"]}} for name in names]
        path.write_text(json.dumps(spec(devices=devices)))

    put(low / "a.json", "lonely", "overridden", "twice", "twice-then-over", value="low-a")
    put(low / "b.yaml", "twice", "twice-then-over", value="low-b")
    put(low / ".dot.json", "dotted", value="dot")
    put(low / "c.json.tmp", "temporary", value="x")
    put(low / "d.txt", "text", value="x")
    put(high / "a.json", "overridden", "twice-then-over", "high-twice", value="high-a")
    put(high / "b.json", "high-twice", value="high-b")
    (low / "folder.json").mkdir()
    put(low / "folder.json" / "e.json", "nested", value="x")
    (low / "dangling.json").symlink_to("nowhere")
    registry = load_registry([low, high])
    official = oracle([low, high], [[name] for name in sorted(registry.devices)])
    assert sorted(registry.devices) == official["devices"]
    assert {conflict.name.partition("=")[2] for conflict in registry.conflicts} == {
        "twice",
        "twice-then-over",
        "high-twice",
    }
    for name, injected in zip(sorted(registry.devices), official["injections"], strict=True):
        assert list(applied_edits(registry, [name]).env) == injected["spec"]["process"]["env"]


def test_edits_are_combined_like_the_official_library(oracle: Any, tmp_path: Path) -> None:
    def device(name: str, **edits: Any) -> dict[str, Any]:
        return {"name": name, "containerEdits": edits}

    hook = {"hookName": "createContainer", "path": "/bin/hook", "args": ["hook", "x"]}
    first = spec(
        "0.7.0",
        containerEdits={"env": ["COMMON=1"], "hooks": [hook], "additionalGids": [0, 7]},
        devices=[
            device(
                "a",
                env=["A=1", "BOTH=a"],
                deviceNodes=[{"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "permissions": "rw"}],
                mounts=[
                    {"hostPath": "/h/deep", "containerPath": "/a/b/c", "options": ["bind"]},
                    {"hostPath": "/h/top", "containerPath": "/a", "options": ["bind"]},
                ],
            ),
            device(
                "b",
                env=["BOTH=b", "B=1"],
                deviceNodes=[{"path": "/dev/x", "type": "c", "major": 1, "minor": 5, "permissions": "r"}],
                mounts=[{"hostPath": "/h/other", "containerPath": "/a/b/c", "options": ["bind"]}],
                hooks=[hook],
                additionalGids=[7, 8],
            ),
        ],
    )
    (tmp_path / "first.json").write_text(json.dumps(first))
    (tmp_path / "second.json").write_text(
        json.dumps(spec(kind="other.com/class", containerEdits={"env": ["COMMON=2"]}))
    )
    ids = ["vendor.com/class=a", "vendor.com/class=b", "other.com/class=dev0"]
    edits = applied_edits(load_registry([tmp_path]), ids)
    official = oracle([tmp_path], [ids])["injections"][0]["spec"]
    assert list(edits.env) == official["process"]["env"]
    assert [(n.path, n.major, n.minor) for n in edits.device_nodes] == [
        (d["path"], d["major"], d["minor"]) for d in official["linux"]["devices"]
    ]
    assert [(m.host_path, m.container_path) for m in edits.mounts] == [
        (m["source"], m["destination"]) for m in official["mounts"]
    ]
    assert [hook.path for hook in edits.hooks] == [h["path"] for h in official["hooks"]["createContainer"]]
    assert list(edits.additional_gids) == official["process"]["user"]["additionalGids"]


def test_an_unknown_device_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"vendor\.com/class=nothing"):
        applied_edits(load_registry([tmp_path]), ["vendor.com/class=nothing"])


def test_special_characters_are_preserved(oracle: Any, tmp_path: Path) -> None:
    special = "\x7f\x80\x85\u2028\u2029\ufeff\uffff\U0001f600 \ttab\nline 'quote\" #: -"
    original = Spec("0.3.0", "vendor.com/class", (Device("d", ContainerEdits(env=(f"ODD={special}",))),))
    (tmp_path / "odd.json").write_bytes(encode(original))
    response = oracle([tmp_path], [["vendor.com/class=d"]])
    assert response["errors"] == {}
    assert response["injections"][0]["spec"]["process"]["env"] == [f"ODD={special}"]
    assert decode(encode(original)) == original == decode(encode(original), as_json=True)
