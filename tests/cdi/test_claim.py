"""The spec of a claim: lowest version, distinct variables, common edits once."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_agent.cdi.claim import SpecDevice, build_spec
from dra_agent.cdi.edits import DeviceEdits
from dra_agent.cdi.model import ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec, encode
from dra_agent.cdi.text import decode
from dra_agent.cdi.validate import KNOWN, minimum_version, problems, warnings
from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.errors import PermanentError
from dra_agent.inventory.model import Device as HostDevice


def spec_device(name: str = "gpu-0", *requests: str, common: ContainerEdits | None = None, **more: Any) -> SpecDevice:
    device = HostDevice(name, "gpu", "amd", "0000:03:00.0", {}, identity=more.pop("identity", {}))
    edits = DeviceEdits(more.pop("own", ContainerEdits()), common or ContainerEdits(), more.pop("foreign_ids", ()))
    return SpecDevice(ClaimDevice("node/gpu", name, requests or ("gpus",), **more), device, edits)


def test_every_device_has_edits() -> None:
    spec = build_spec("d.example", ClaimRef("u", "ns", "claim"), [spec_device()]).spec
    assert spec.cdi_version == "0.3.0" and spec.devices[0].container_edits.env
    assert problems(spec) == []


def test_two_claims_in_one_container_have_distinct_variables() -> None:
    def variables(name: str, device: str) -> dict[str, str]:
        spec = build_spec("d.example", ClaimRef(f"u-{name}", "ns", name), [spec_device(device, "gpus")]).spec
        return dict(text.split("=", 1) for text in spec.devices[0].container_edits.env)

    first, second = variables("a", "gpu-0"), variables("b", "gpu-1")
    assert {key for key in first if key.startswith("DRA_AGENT_DEVICE_")}.isdisjoint(second)
    assert first["DRA_AGENT_DEVICE_GPU_0"] == "ns/a/gpus"


def test_device_of_two_requests_names_both() -> None:
    env = (
        build_spec("d.example", ClaimRef("u", "ns", "c"), [spec_device("gpu-0", "a", "b"), spec_device("gpu-1", "b")])
        .spec.devices[0]
        .container_edits.env
    )
    assert "DRA_AGENT_DEVICE_GPU_0=ns/c/a,ns/c/b" in env
    assert "DRA_AGENT_REQUEST_A=gpu-0" in env and "DRA_AGENT_REQUEST_B=gpu-0,gpu-1" in env


def test_edits_common_to_all_devices_are_applied_once() -> None:
    common = ContainerEdits(hooks=(Hook("createContainer", "/bin/hook"),))
    spec = build_spec(
        "d.example",
        ClaimRef("u", "ns", "c"),
        [spec_device("gpu-0", common=common), spec_device("gpu-1", common=common)],
    ).spec
    assert spec.container_edits.hooks == common.hooks
    assert all(not device.container_edits.hooks for device in spec.devices)


def test_edits_common_to_some_devices_stay_with_them() -> None:
    common = ContainerEdits(device_nodes=(DeviceNode("/dev/nvidiactl"),))
    spec = build_spec(
        "d.example", ClaimRef("u", "ns", "c"), [spec_device("gpu-0", common=common), spec_device("gpu-1")]
    ).spec
    assert not spec.container_edits.device_nodes
    assert spec.devices[0].container_edits.device_nodes and not spec.devices[1].container_edits.device_nodes


def test_foreign_devices_come_first() -> None:
    built = build_spec("d.example", ClaimRef("u", "ns", "c"), [spec_device(foreign_ids=("nvidia.com/gpu=G",))])
    assert built.ids == (("nvidia.com/gpu=G", "d.example/claim=u-gpu-0"),)


def test_invalid_spec_is_never_written() -> None:
    with pytest.raises(PermanentError, match=r"claim ns/c \(u\): its CDI spec would be refused: .*appears twice"):
        build_spec("d.example", ClaimRef("u", "ns", "c"), [spec_device("gpu-0"), spec_device("gpu-0")])


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
PATH = TEXT.map(lambda text: f"/{text}")
NAME = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,6}[A-Za-z0-9])?", fullmatch=True)
WORD = st.from_regex(r"[A-Za-z]([A-Za-z0-9_.-]{0,6}[A-Za-z0-9])?", fullmatch=True)
ENV = st.lists(st.tuples(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), TEXT).map("=".join), max_size=2).map(tuple)
ID = st.integers(0, 2**32 - 1)
NODES = st.builds(
    DeviceNode,
    path=PATH,
    host_path=st.just("") | PATH,
    type=st.sampled_from(["b", "c", "u", "p"]),
    major=st.none() | st.integers(0, 4095),
    minor=st.none() | st.integers(0, 2**20 - 1),
    file_mode=st.none() | st.integers(0, 0o7777),
    permissions=st.sampled_from(["", "r", "rw", "rwm", "none"]),
    uid=st.none() | ID,
    gid=st.none() | ID,
)
HOOKS = st.builds(
    Hook,
    hook_name=st.sampled_from(
        ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
    ),
    path=PATH,
    args=st.lists(TEXT, max_size=2).map(tuple),
    env=ENV,
    timeout=st.none() | st.integers(1, 60),
)
MOUNTS = st.builds(
    Mount,
    host_path=PATH,
    container_path=PATH,
    options=st.lists(st.sampled_from(["ro", "bind", "nosuid"]), max_size=2).map(tuple),
    type=st.sampled_from(["", "bind", "tmpfs"]),
)
RDT = st.builds(
    IntelRdt,
    clos_id=st.sampled_from(["", "/", "guaranteed"]),
    l3_cache_schema=st.sampled_from(["", "L3:0=f"]),
    schemata=st.lists(st.just("MB:0=50"), max_size=1).map(tuple),
    enable_monitoring=st.booleans(),
)
NETS = st.lists(st.builds(NetDevice, TEXT, TEXT), max_size=1).map(tuple)


def up_to_two(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=2).map(tuple)


EDITS = st.builds(
    ContainerEdits,
    env=ENV,
    device_nodes=up_to_two(NODES),
    net_devices=NETS,
    hooks=up_to_two(HOOKS),
    mounts=up_to_two(MOUNTS),
    intel_rdt=st.none() | RDT,
    additional_gids=up_to_two(ID),
)
NOTES = st.dictionaries(NAME.filter(lambda text: ":" not in text), TEXT, max_size=1)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    names = draw(st.lists(NAME, min_size=1, max_size=3, unique=True))
    devices = tuple(Device(name, draw(EDITS.filter(bool)), draw(NOTES)) for name in names)
    draft = Spec("", f"{draw(WORD)}/{draw(WORD)}", devices, draw(NOTES), draw(EDITS))
    return msgspec.structs.replace(draft, cdi_version=minimum_version(draft))


@settings(max_examples=40, deadline=None)
@given(spec=specs())
def test_written_specs_are_read_back_and_match_the_schema(spec: Spec, schema: dict[str, Any]) -> None:
    assert problems(spec) == [] and warnings(spec) == []
    data = encode(spec)
    assert decode(data, as_json=True) == spec and decode(data) == spec
    jsonschema.Draft202012Validator(schema).validate(json.loads(data))


@given(spec=specs())
def test_spec_has_the_lowest_possible_version(spec: Spec) -> None:
    index = KNOWN.index(spec.cdi_version)
    for lower in KNOWN[2:index]:
        assert any("too low" in problem for problem in problems(msgspec.structs.replace(spec, cdi_version=lower)))


@given(first=EDITS, second=EDITS)
def test_merging_keeps_every_edit_once(first: ContainerEdits, second: ContainerEdits) -> None:
    merged = first.merged(second)
    assert merged.merged(second) == merged and merged.merged(ContainerEdits()) == merged
    assert set(merged.mounts) == {*first.mounts, *second.mounts}
