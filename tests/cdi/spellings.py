"""CDI files with one unusual spelling each, as texts by file name."""

from __future__ import annotations

import json
from pathlib import Path

RECORDED = Path(__file__).with_name("spellings.json")
"""What the versions of the official library make of the texts: the names of the devices; null for a refused file."""
HEAD = "cdiVersion: 0.8.0\nkind: vendor.com/class\n"
EDITS = "    containerEdits: {env: [A=1]}\n"


def device(name: str) -> str:
    return f"{HEAD}devices:\n  - name: {name}\n{EDITS}"


def edits(text: str, version: str = "0.8.0") -> str:
    head = HEAD.replace("0.8.0", version)
    return f"{head}devices:\n  - name: dev0\n    containerEdits: {{{text}}}\n"


def node(fields: str) -> str:
    return edits(f"deviceNodes: [{{path: /dev/x, {fields}}}]")


NAMES = {
    "bool": "yes",
    "bool-true": "True",
    "bool-y": "y",
    "int": "17",
    "octal": "017",
    "octal-new": "0o17",
    "hex": "0x1f",
    "binary": "0b11",
    "underscore": "1_000",
    "float": "1.50",
    "exponent": "1e3",
    "large": "99999999999999999999",
    "sexagesimal": "190:20:30",
    "date": "2026-11-30",
    "address": "0000:3b:00.0",
    "null": "null",
    "tilde": "~",
    "empty": "''",
    "quoted": "'17'",
    "tagged-str": "!!str 17",
    "tagged-int": "!!int '17'",
    "list": "[a]",
    "map": "{a: b}",
    "infinity": ".inf",
    "plus": "+1",
    "leading-dot": ".5",
    "merge": "<<",
    "time": "2001-12-14t21:59:43.10-05:00",
}
NUMBERS = {
    "text": "'1'",
    "word": "abc",
    "float": "1.0",
    "fraction": "1.5",
    "exponent": "1e3",
    "hex": "0x10",
    "octal": "010",
    "octal-new": "0o10",
    "binary": "0b11",
    "negative": "-1",
    "minus-zero": "-0",
    "large": "9223372036854775808",
    "larger": "99999999999999999999",
    "bool": "true",
    "null": "null",
    "underscore": "1_0",
    "list": "[1]",
    "infinity": ".inf",
}
TEXTS: dict[str, str] = {
    **{f"name-{key}.yaml": device(value) for key, value in NAMES.items()},
    **{f"major-{key}.yaml": node(f"type: c, major: {value}, minor: 0") for key, value in NUMBERS.items()},
    **{f"uid-{key}.yaml": node(f"uid: {value}") for key, value in NUMBERS.items()},
    "uid-max.yaml": node("uid: 4294967295"),
    "uid-over.yaml": node("uid: 4294967296"),
    "file-mode-octal.yaml": node("fileMode: 0660"),
    "file-mode-text.yaml": node("fileMode: '0660'"),
    "file-mode-negative.yaml": node("fileMode: -1"),
    "file-mode-over.yaml": node("fileMode: 4294967296"),
    "path-int.yaml": edits("deviceNodes: [{path: 5}]"),
    "permissions-null.yaml": node("permissions: null"),
    "type-unknown.yaml": node("type: q"),
    "type-bool.yaml": node("type: true"),
    "timeout-negative.yaml": edits("hooks: [{hookName: prestart, path: /x, timeout: -5}]"),
    "timeout-float.yaml": edits("hooks: [{hookName: prestart, path: /x, timeout: 5.0}]"),
    "timeout-text.yaml": edits("hooks: [{hookName: prestart, path: /x, timeout: '5'}]"),
    "args-int.yaml": edits("hooks: [{hookName: prestart, path: /x, args: [x, 1, true, 1.5, null]}]"),
    "hook-null.yaml": edits("env: [A=1], hooks: [null]"),
    "hook-name-bool.yaml": edits("hooks: [{hookName: true, path: /x}]"),
    "env-int.yaml": edits("env: [1]"),
    "env-null.yaml": edits("env: [null]"),
    "env-text.yaml": edits("env: A=1"),
    "env-map.yaml": edits("env: {A: 1}"),
    "env-null-list.yaml": edits("env: null, mounts: [{hostPath: /a, containerPath: /b}]"),
    "mount-options-int.yaml": edits("mounts: [{hostPath: /a, containerPath: /b, options: [1, null]}]"),
    "mount-null.yaml": edits("env: [A=1], mounts: [null]"),
    "node-null.yaml": edits("env: [A=1], deviceNodes: [null]"),
    "gids.yaml": edits("additionalGids: [1, 2.0, 0x3]"),
    "gids-text.yaml": edits("additionalGids: ['1']"),
    "gids-null.yaml": edits("additionalGids: [null, 5]"),
    "gids-negative.yaml": edits("additionalGids: [-1]"),
    "gids-over.yaml": edits("additionalGids: [4294967296]"),
    "rdt-null.yaml": edits("env: [A=1], intelRdt: null"),
    "rdt-empty.yaml": edits("intelRdt: {}"),
    "rdt-int.yaml": edits("intelRdt: {closID: 10}"),
    "rdt-monitoring-yes.yaml": edits("intelRdt: {enableMonitoring: yes}", "1.1.0"),
    "rdt-monitoring-text.yaml": edits("intelRdt: {enableMonitoring: 'true'}", "1.1.0"),
    "rdt-monitoring-int.yaml": edits("intelRdt: {enableMonitoring: 1}", "1.1.0"),
    "rdt-old-cmt.yaml": edits("intelRdt: {closID: a, enableCMT: true}"),
    "rdt-old-mbm.yaml": edits("intelRdt: {closID: a, enableMBM: true}"),
    "net-devices.yaml": edits("netDevices: [{hostInterfaceName: eth1, name: 5}]", "1.1.0"),
    "net-devices-low.yaml": edits("netDevices: [{hostInterfaceName: eth1, name: x}]"),
    "annotation-bool.yaml": device("dev0") + "annotations: {a/b: true, c/d: 1, e/f: 1.5}\n",
    "annotation-null.yaml": device("dev0") + "annotations: {a/b: null}\n",
    "annotation-list.yaml": device("dev0") + "annotations: {a/b: [1]}\n",
    "annotation-key-int.yaml": device("dev0") + "annotations: {1: a}\n",
    "annotations-null.yaml": device("dev0") + "annotations: null\n",
    "unknown-null.yaml": device("dev0") + "unknown: null\n",
    "unknown-in-node.yaml": node("mode: 1"),
    "key-case.yaml": device("dev0").replace("kind:", "Kind:"),
    "key-case-inner.yaml": device("dev0").replace("containerEdits", "ContainerEdits"),
    "key-case-json.json": '{"CDIVERSION":"0.8.0","kind":"vendor.com/class",'
    '"devices":[{"name":"dev0","containerEdits":{"env":["A=1"]}}]}',
    "key-twice-case.yaml": device("dev0") + "Kind: other.com/class\n",
    "key-twice.yaml": device("dev0") + "kind: vendor.com/class\n",
    "key-twice-inner.yaml": edits("env: [A=1], env: [B=1]"),
    "key-twice-types.yaml": device("dev0") + "annotations: {1: a, '1': b}\n",
    "key-int.yaml": device("dev0") + "1: a\n",
    "key-null.yaml": device("dev0") + "null: a\n",
    "key-list.yaml": device("dev0") + "? [a]\n: b\n",
    "version-float.yaml": device("dev0").replace("0.8.0", "0.8"),
    "version-quoted.yaml": device("dev0").replace("0.8.0", "'0.8.0'"),
    "version-null.yaml": device("dev0").replace("0.8.0", "null"),
    "separator-first.yaml": "---\n" + device("dev0"),
    "separator-last.yaml": device("dev0") + "---\n",
    "end-mark.yaml": device("dev0") + "...\n",
    "two-documents.yaml": device("dev0") + "---\n" + device("dev1"),
    "second-document-broken.yaml": device("dev0") + "---\n{[\n",
    "second-document-tab.yaml": device("dev0") + "...\n\t\n@\n",
    "first-document-empty.yaml": "---\n---\n" + device("dev0"),
    "comments-only.yaml": "# nothing\n",
    "only-separator.yaml": "---\n",
    "null-document.yaml": "null\n",
    "text-document.yaml": "text\n",
    "list-document.yaml": "- a\n",
    "directive.yaml": "%YAML 1.1\n---\n" + device("dev0"),
    "directive-new.yaml": "%YAML 1.2\n---\n" + device("dev0"),
    "byte-order-mark.yaml": "\ufeff" + device("dev0"),
    "carriage-returns.yaml": device("dev0").replace("\n", "\r\n"),
    "tab-indent.yaml": device("dev0").replace("  - name", "\t- name"),
    "anchor.yaml": HEAD + "devices:\n  - name: dev0\n    containerEdits: &e {env: [A=1]}\n"
    "  - name: dev1\n    containerEdits: *e\n",
    "anchor-unknown.yaml": HEAD + "devices:\n  - name: dev0\n    containerEdits: *e\n",
    "merge.yaml": HEAD + "devices:\n  - &d\n    name: dev0\n    containerEdits: {env: [A=1]}\n"
    "  - <<: *d\n    name: dev1\n",
    "merge-apart.yaml": HEAD + "devices:\n  - name: dev0\n    containerEdits: &e {env: [A=1]}\n"
    "  - name: dev1\n    containerEdits: {<<: *e, additionalGids: [1]}\n",
    "merge-list.yaml": HEAD + "devices:\n  - &d\n    name: dev0\n    containerEdits: {env: [A=1]}\n"
    "  - <<: [*d]\n    name: dev1\n",
    "merge-text.yaml": device("dev0") + "<<: text\n",
    "devices-null.yaml": HEAD + "devices: null\ncontainerEdits: {env: [A=1]}\n",
    "devices-map.yaml": HEAD + "devices: {name: dev0}\n",
    "device-null.yaml": device("dev0") + "  - null\n",
    "device-text.yaml": device("dev0") + "  - text\n",
    "edits-null.yaml": HEAD + "devices: [{name: dev0, containerEdits: null}]\n",
    "edits-list.yaml": HEAD + "devices: [{name: dev0, containerEdits: []}]\n",
    "common-edits-null.yaml": device("dev0") + "containerEdits: null\n",
    "tag-unknown.yaml": device("!thing dev0"),
    "tag-binary.yaml": device("!!binary ZGV2MA=="),
    "block-text.yaml": HEAD + "devices:\n  - name: |-\n      dev0\n" + EDITS,
    "json-number-name.json": '{"cdiVersion":"0.8.0","kind":"vendor.com/class",'
    '"devices":[{"name":1,"containerEdits":{"env":["A=1"]}}]}',
    "json-trailing-comma.json": '{"cdiVersion":"0.8.0","kind":"vendor.com/class",'
    '"devices":[{"name":"dev0","containerEdits":{"env":["A=1"],}}]}',
    "json-two.json": '{"cdiVersion":"0.8.0","kind":"vendor.com/class",'
    '"devices":[{"name":"dev0","containerEdits":{"env":["A=1"]}}]} {}',
    "json-surrogates.json": '{"cdiVersion":"0.8.0","kind":"vendor.com/class",'
    '"devices":[{"name":"dev0","containerEdits":{"env":["A=\\ud83d\\ude00"]}}]}',
    "json-slash.json": '{"cdiVersion":"0.8.0","kind":"vendor.com\\/class",'
    '"devices":[{"name":"dev0","containerEdits":{"env":["A=1"]}}]}',
    "json-float-uid.json": '{"cdiVersion":"0.8.0","kind":"vendor.com/class",'
    '"devices":[{"name":"dev0","containerEdits":{"deviceNodes":[{"path":"/dev/x","uid":1.0}]}}]}',
    "json-comment.json": '{"cdiVersion":"0.8.0", # version\n"kind":"vendor.com/class",'
    '"devices":[{"name":"dev0","containerEdits":{"env":["A=1"]}}]}',
    "json-tabs.json": '{\n\t"cdiVersion": "0.8.0",\n\t"kind": "vendor.com/class",\n\t"devices": [\n'
    '\t\t{"name": "dev0",\n\t\t"containerEdits": {"env": ["A=1"],}}\n\t]\n}\n',
    "tab-after-colon.yaml": device("dev0").replace("kind: ", "kind:\t"),
    "empty.yaml": "",
    "spaces.yaml": "  \n\n",
    "not-utf-8.yaml": device("dev0") + "# \udcff\n",
    "deep.yaml": device("dev0") + "annotations: " + "[" * 500 + "]" * 500 + "\n",
}


def recorded() -> dict[str, dict[str, list[str] | None]]:
    """Return the record by file name and version."""
    found: dict[str, dict[str, list[str] | None]] = json.loads(RECORDED.read_text())
    return found


def write(directory: Path, name: str) -> Path:
    """Write a text alone into a directory below this one, and return the directory."""
    (directory / name).mkdir()
    (directory / name / name).write_bytes(TEXTS[name].encode(errors="surrogateescape"))
    return directory / name
