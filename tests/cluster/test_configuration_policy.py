"""The policy about configuration at a real API server: it refuses what the agent refuses without a device."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.kube import build, prerequisites
from cluster.kube.api import CLAIMS, CLASSES, TEMPLATES, Api, ApiStatusError, Kind, Object
from cluster.kube.cluster_dir import ClusterDir
from cluster.kube.control_plane import ControlPlane
from cluster.kube.identity import CHART, RELEASE
from cluster.kube.workload import opaque, request
from dra_agent.agent.setup_registry import known_setups
from dra_agent.prepare.config import CONFIG_PATHS, MAX_CONFIGS, validate_object

DRIVER = "gpus.example.com"
NAMESPACE = "configurations"
NAME = f"{NAMESPACE}-{RELEASE}-configuration"
EARLIER_VERSIONS = ("v1beta1", "v1beta2")
POLICIES, BINDINGS = (
    Kind("admissionregistration.k8s.io/v1", plural, namespaced=False)
    for plural in ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
)
SETUPS = known_setups()
VERSION = "dra-agent.internal/v1"
KINDS = {"ResourceClaim": CLAIMS, "ResourceClaimTemplate": TEMPLATES, "DeviceClass": CLASSES}
RANDOM_OBJECTS = 400
MAX_PARAMETERS_BYTES = 10 * 1024
"""Of one configuration: OpaqueParametersMaxLength of resource.k8s.io."""


def parameters(kind: str = "GpuConfig", **settings: Any) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind, **settings}


def time_slices(interval: object) -> dict[str, Any]:
    return parameters(timeSlicing={"interval": interval})


def interface(**settings: Any) -> dict[str, Any]:
    return parameters("NicConfig", interface=settings)


def route(destination: object = "10.1.0.0/16", **settings: Any) -> dict[str, Any]:
    return interface(name="net0", routes=[{"destination": destination, **settings}])


NOT_SLICES: list[Any] = [0, 8, -1, 1.0, 1.5, "1", True, [], {}, 2**63, 2**70, 1e300]
INVALID: list[tuple[dict[str, Any], str]] = [
    ({}, ".kind: is unknown or missing; known kinds: AmdPartitionConfig of"),
    ({"kind": "GpuConfig", "timeSlicing": {}}, ".kind: is unknown or missing"),
    ({"apiVersion": VERSION, "timeSlicing": {}}, ".kind: is unknown or missing"),
    ({**time_slices("Long"), "kind": 1}, ".kind: is unknown or missing"),
    ({**time_slices("Long"), "kind": None}, ".kind: is unknown or missing"),
    ({**time_slices("Long"), "apiVersion": ["a"]}, ".kind: is unknown or missing"),
    ({**time_slices("Long"), "kind": "gpuconfig"}, ".kind: is unknown or missing"),
    ({**time_slices("Long"), "apiVersion": "dra-agent.internal/v2"}, ".kind: is unknown or missing"),
    (parameters("ShareConfig", timeSlicing={}), ".timeSlicing: no such field"),
    (parameters("AmdPartitionConfig", mode="CPX"), ".mode: no such field"),
    (parameters("ReclaimNoticeConfig", seconds=1), ".seconds: no such field"),
    (parameters("VfioConfig", **{"\u001b[31m\n": 1}), ": has an unknown field"),
    (parameters("VfioConfig", **{"a" * 5000: 1}), ": has an unknown field"),
    (parameters("VfioConfig", iommu="Auto"), ".iommu: must be one of auto, iommufd, legacy"),
    (parameters("VfioConfig", iommu=None), ".iommu: must be one of"),
    (parameters("VfioConfig", iommu={"auto": 1}), ".iommu: must be one of"),
    (parameters(), ".timeSlicing: is missing"),
    (parameters(timeSlicing=None), ".timeSlicing: must be an object"),
    (parameters(timeSlicing=[]), ".timeSlicing: must be an object"),
    (parameters(timeSlicing="Long"), ".timeSlicing: must be an object"),
    (parameters(timeSlicing={"intervall": "Long"}), ".timeSlicing.intervall: no such field"),
    (parameters(timeSlicing={}, odd=1), ".odd: no such field"),
    (time_slices("Lng"), ".timeSlicing.interval: must be one of Default, Long, Medium, Short"),
    (time_slices("long"), ".timeSlicing.interval: must be one of"),
    (time_slices(3), ".timeSlicing.interval: must be one of"),
    (time_slices(None), ".timeSlicing.interval: must be one of"),
    *(
        (parameters("MigConfig", computeSlices=value), ".computeSlices: must be an integer from 1 to 7")
        for value in NOT_SLICES
    ),
    (parameters("MigConfig", compute_slices=1), ".compute_slices: no such field"),
    (parameters("ShareConfig", activeThreadPercentage=0), ".activeThreadPercentage: must be an integer from 1 to 100"),
    (parameters("ShareConfig", activeThreadPercentage=101), ".activeThreadPercentage: must be an integer from 1"),
    (parameters("ShareConfig", activeThreadPercentage="50%"), ".activeThreadPercentage: must be an integer from 1"),
    (parameters("NicConfig"), ".interface: is missing"),
    (interface(speed=1), ".interface.speed: no such field"),
    *(
        (interface(name=name), ".interface.name: must be a string that does not match ^(lo|eth0|all|default)$ and")
        for name in ("", "eth0", "lo", "all", "default", "a b", "a/b", "-a", ".", "a" * 16, "net0\n", "nét", 0, ["a"])
    ),
    *((interface(mtu=mtu), ".interface.mtu: must be an integer from 68 to 65535") for mtu in (67, 65536, "1500", 1.5)),
    *(
        (interface(name="net0", addresses=[address]), ".interface.addresses[0]: must be a")
        for address in (
            "10.0.0.5",
            "10.0.0/8",
            "10.0.0.5/33",
            "10.0.0.5/",
            "10.0.0.5/024",
            "010.0.0.5/24",
            "10.0.0.5/255.0.0.0",
            "fe80::1::/64",
            "fe80::1/129",
            "fe80::1%eth0/64",
            "::ffff:10.0.0.5/120",
            "10.0.0.5/24\n",
            " 10.0.0.5/24",
            "",
            5,
            None,
            {"address": "10.0.0.5/24"},
        )
    ),
    (interface(name="net0", addresses=["10.0.0.5/24", "x"]), ".interface.addresses[1]: must be a string that matches"),
    (interface(name="net0", addresses="10.0.0.5/24"), ".interface.addresses: must be a list of at most 64 items"),
    (interface(name="net0", addresses=["10.0.0.5/24"] * 65), ".interface.addresses: must be a list of at most 64"),
    (interface(addresses=[]), ".interface.addresses: is only for an interface that has a name in the container"),
    (interface(name=None, addresses=["10.0.0.5/24"]), ".interface.addresses: is only for an interface that has a name"),
    (interface(routes=[{"destination": "10.1.0.0/16"}]), ".interface.routes: is only for an interface that has a name"),
    (interface(name="net0", routes=None), ".interface.routes: must be a list of at most 64 items"),
    (interface(name="net0", routes={}), ".interface.routes: must be a list of at most 64 items"),
    (interface(name="net0", routes=["10.1.0.0/16"]), ".interface.routes[0]: must be an object"),
    (interface(name="net0", routes=[{"destination": "10.1.0.0/16"}] * 65), ".interface.routes: must be a list of"),
    (interface(name="net0", routes=[{}]), ".interface.routes[0].destination: is missing"),
    (interface(name="net0", routes=[{"gateway": "10.0.0.1"}]), ".interface.routes[0].destination: is missing"),
    (route("10.1.0.1/16"), ".interface.routes[0].destination: must be a network, without host bits"),
    (route("fd00::1/64"), ".interface.routes[0].destination: must be a network, without host bits"),
    (route("::ffff:10.1.0.0/112"), ".interface.routes[0].destination: must be a network"),
    (route("default"), ".interface.routes[0].destination: must be a string that matches"),
    (route(None), ".interface.routes[0].destination: must be a string"),
    (route(gateway="10.0.0"), ".interface.routes[0].gateway: must be an IP address"),
    (route(gateway="::ffff:10.0.0.1"), ".interface.routes[0].gateway: must be an IP address"),
    (route(gateway="10.0.0.1/24"), ".interface.routes[0].gateway: must be a string that matches"),
    (route(gateway=1), ".interface.routes[0].gateway: must be a string that matches"),
    (route(gateway="fe80::1"), ".interface.routes[0].gateway: must be of the family of the destination"),
    (route("fd00::/64", gateway="10.0.0.1"), ".interface.routes[0].gateway: must be of the family of the destination"),
    (route(metric=1), ".interface.routes[0].metric: no such field"),
]
"""Parameters, and the beginning of the problem after their path."""
VALID: list[dict[str, Any]] = [
    parameters(timeSlicing={}),
    *map(time_slices, ("Default", "Short", "Medium", "Long")),
    parameters("AmdPartitionConfig"),
    parameters("ReclaimNoticeConfig"),
    *(parameters("MigConfig", computeSlices=value) for value in (1, 7, None)),
    parameters("MigConfig"),
    *(parameters("ShareConfig", activeThreadPercentage=value) for value in (1, 100, None)),
    parameters("VfioConfig"),
    *(parameters("VfioConfig", iommu=value) for value in ("auto", "iommufd", "legacy")),
    interface(),
    *(interface(name=name) for name in (None, "net0", "a", "0", "eth1", "lo0", "a" * 15, "a.b_c-d", "defaultx")),
    *(interface(mtu=mtu) for mtu in (68, 65535, None)),
    *(interface(name="net0", addresses=value) for value in (None, [], ["10.0.0.5/24", "fe80::1/64", "::1.2.3.4/128"])),
    interface(routes=[]),
    *(route(destination) for destination in ("10.1.0.0/16", "0.0.0.0/0", "::/0", "FD00::/8", "10.0.0.1/32")),
    *(route(gateway=gateway) for gateway in (None, "10.0.0.1")),
    route("fd00::/64", gateway="fe80::1"),
    interface(name="net0", addresses=["10.0.0.5/24"] * 64, routes=[{"destination": "10.1.0.0/16"}] * 64),
]


def configured(kind: str, *config: Object, version: str = "v1") -> Object:
    """Return an object of one of the kinds with configuration."""
    spec: Object = {"config": list(config)}
    if kind != "DeviceClass":
        exact = request("gpu", "gpu")
        if version == "v1beta1":
            exact = {"name": "gpu", **exact["exactly"]}
        spec = {"devices": {"requests": [exact], **spec}}
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": {"name": "configured"}, "spec": spec}


def refusal(api: Api, value: Object) -> str:
    """Return why the API server refuses to create an object; "" if it would create it."""
    kind = Kind(value["apiVersion"], KINDS[value["kind"]].plural, KINDS[value["kind"]].namespaced)
    try:
        api.call("POST", f"{kind.path('default', None, None)}?dryRun=All", value)
    except ApiStatusError as error:
        assert (error.code, error.reason) == (422, "Invalid"), error
        start = f"ValidatingAdmissionPolicy '{NAME}' with binding '{NAME}' denied request: "
        assert start in str(error), f"not by the policy: {error}"
        return str(error).partition(start)[2]
    return ""


def is_valid(value: Object) -> bool:
    """Return whether the agent accepts the configuration in an object."""
    return not validate_object(value, DRIVER, SETUPS)[1]


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """etcd, an API server with earlier versions of the API, too, and the controllers that check types."""
    try:
        programs = build.programs()
    except prerequisites.MissingError as missing:
        pytest.fail(str(missing), pytrace=False)
    cluster_dir = ClusterDir.acquire()
    try:
        cluster_dir.add_addresses()
        versions = {f"resource.k8s.io/{version}": True for version in EARLIER_VERSIONS}
        created = ControlPlane(cluster_dir, programs, (), build.gates(), {**build.runtime_config(), **versions})
        try:
            for process in (created.etcd, created.apiserver):
                process.start()
            created.ready()
            created.controllers.start()
            yield created
        finally:
            created.stop()
    finally:
        cluster_dir.clear()
        cluster_dir.release()


def manifests(programs: Path) -> list[Object]:
    """Return the policy and its binding, as the chart renders them."""
    command = [str(programs / "helm"), "template", RELEASE, str(CHART), "--namespace", NAMESPACE]
    command += ["--kube-version", build.kubernetes_version(), "--set", f"driverName={DRIVER}"]
    command += ["--show-only", "templates/configurationpolicy.yaml"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return list(yaml.safe_load_all(text))


def install(api: Api, policy: Object, binding: Object) -> None:
    """Create them; return when they are in force."""
    api.create(POLICIES, policy)
    api.create(BINDINGS, binding)
    wrong = configured("ResourceClaim", opaque(DRIVER, {}))
    api.wait(lambda: refusal(api, wrong), "the policy is in force", every=0.2)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """The API server with the policy in force."""
    with control_plane() as plane:
        install(plane.api, *manifests(plane.programs))
        yield plane.api


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_mistake_is_refused_with_its_field(api: Api, kind: str) -> None:
    for invalid, problem in INVALID:
        value = configured(kind, opaque(DRIVER, time_slices("Long")), opaque(DRIVER, invalid))
        assert not is_valid(value), invalid
        assert refusal(api, value).startswith(f"{CONFIG_PATHS[kind]}[1].opaque.parameters{problem}"), invalid


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_valid_configuration_is_accepted(api: Api, kind: str) -> None:
    for valid in VALID:
        value = configured(kind, opaque(DRIVER, valid))
        assert is_valid(value), valid
        assert refusal(api, value) == "", valid


@pytest.mark.parametrize("version", EARLIER_VERSIONS)
def test_objects_of_earlier_versions_are_checked(api: Api, version: str) -> None:
    for kind in KINDS:
        assert refusal(api, configured(kind, opaque(DRIVER, time_slices("Long")), version=version)) == ""
        message = refusal(api, configured(kind, opaque(DRIVER, time_slices("Lng")), version=version))
        assert message.startswith(f"{CONFIG_PATHS[kind]}[0].opaque.parameters.timeSlicing.interval")


def test_configuration_for_other_drivers_is_not_checked(api: Api) -> None:
    for kind in KINDS:
        other = opaque("other.example.com", {"anything": 1})
        assert refusal(api, configured(kind)) == ""
        assert refusal(api, configured(kind, other)) == ""
        assert refusal(api, configured(kind, other, opaque(DRIVER, time_slices("Long")))) == ""
        message = refusal(api, configured(kind, other, opaque(DRIVER, time_slices("Lng"))))
        path = f"{CONFIG_PATHS[kind]}[1].opaque.parameters.timeSlicing.interval"
        assert message == f"{path}: must be one of Default, Long, Medium, Short"


def test_an_update_is_refused_only_for_new_mistakes(api: Api) -> None:
    old = {"metadata": {"name": "old-mistake"}, "spec": configured("DeviceClass", opaque(DRIVER, {}))["spec"]}
    binding = api.get(BINDINGS, NAME)
    api.delete(BINDINGS, NAME)
    api.wait(lambda: not refusal(api, configured("DeviceClass", opaque(DRIVER, {}))), "nothing is refused", every=0.2)
    try:
        created = api.create(CLASSES, old)
        api.create(BINDINGS, {key: binding[key] for key in ("kind", "spec")} | {"metadata": {"name": NAME}})
        api.wait(
            lambda: refusal(api, configured("DeviceClass", opaque(DRIVER, {}))), "the policy is in force", every=0.2
        )
        created["metadata"]["labels"] = {"a": "b"}
        created = api.replace(CLASSES, created)
        created["spec"]["config"].append(opaque(DRIVER, time_slices("Lng")))
        with pytest.raises(ApiStatusError, match=r"denied request: spec\.config\[1\]\.opaque\.parameters\.timeSlicing"):
            api.replace(CLASSES, created)
        created["spec"]["config"] = [opaque(DRIVER, time_slices("Long"))]
        api.replace(CLASSES, created)
    finally:
        api.delete(CLASSES, "old-mistake")


def test_the_largest_objects_are_within_the_budget(api: Api) -> None:
    """The API server ends an expression that is too expensive, and would then refuse a valid object."""
    large = interface(
        name="net0",
        addresses=[f"fd00:1234:5678:9abc:def0:1234:5678:{n:04x}/128" for n in range(64)],
        routes=[{"destination": f"10.{n}.0.0/16", "gateway": f"10.255.255.{n}"} for n in range(64)],
    )
    assert 6000 < len(json.dumps(large)) < MAX_PARAMETERS_BYTES
    assert refusal(api, configured("DeviceClass", *[opaque(DRIVER, large)] * MAX_CONFIGS)) == ""
    # One mistake in each entry: as many as a message can have.
    message = refusal(api, configured("DeviceClass", *[opaque(DRIVER, interface(name="eth0"))] * MAX_CONFIGS))
    assert message.startswith("spec.config[0].opaque.parameters.interface.name: must be a string that does not match")
    assert message.endswith("...") and message.count("interface.name") > 20
    # Thousands of mistakes are too expensive to name.
    routes = [{"destination": "x", "gateway": "y", "z": n} for n in range(64)]
    wrong = interface(name="net0", addresses=["x"] * 64, routes=routes)
    many = parameters("VfioConfig", **{f"field{n}": n for n in range(500)})
    for settings in (wrong, many):
        assert len(json.dumps(settings)) < MAX_PARAMETERS_BYTES
        message = refusal(api, configured("DeviceClass", *[opaque(DRIVER, settings)] * MAX_CONFIGS))
        assert message == "the configuration of devices is invalid; dra-agent config validate names the fields"


VALUES: list[Any] = [
    *(
        None,
        True,
        0,
        1,
        7,
        8,
        68,
        1500,
        1.0,
        -1,
        "",
        "x",
        "Long",
        "auto",
        "net0",
        "eth0",
        [],
        {},
        [None],
        ["10.0.0.5/24"],
    ),
    *("10.0.0.5/24", "10.0.0.0/8", "10.0.0.1", "fe80::1", "fd00::/64", "::ffff:1.2.3.4", "1.2.3.4/024", "0.0.0.0/0"),
]
FIELDS = ("timeSlicing", "interval", "computeSlices", "activeThreadPercentage", "iommu", "odd", "name", "mtu")


def random_value(source: random.Random, valid: Any) -> Any:
    """Return a copy with a few random changes."""
    if source.random() < 0.12:
        return source.choice(VALUES)
    if isinstance(valid, dict):
        changed = {name: random_value(source, item) for name, item in valid.items() if source.random() > 0.08}
        if source.random() < 0.1:
            changed[source.choice(FIELDS)] = source.choice(VALUES)
        return changed
    if isinstance(valid, list):
        return [random_value(source, item) for item in valid[:3]]
    return valid


def test_the_policy_refuses_what_the_agent_refuses(api: Api) -> None:
    source = random.Random(42)
    refused = 0
    for _ in range(RANDOM_OBJECTS):
        valid = source.choice(VALID)
        settings = {name: item for name, item in valid.items() if name not in ("apiVersion", "kind")}
        changed = random_value(source, settings)
        value = configured("DeviceClass", opaque(DRIVER, {**valid, **(changed if isinstance(changed, dict) else {})}))
        message = refusal(api, value)
        assert (message == "") == is_valid(value), f"{json.dumps(value)}: {message}"
        refused += bool(message)
    assert RANDOM_OBJECTS * 0.2 < refused < RANDOM_OBJECTS * 0.8, refused


def test_the_policy_has_no_type_warnings(api: Api) -> None:
    def checked() -> bool:
        return "typeChecking" in api.get(POLICIES, NAME).get("status", {})

    api.wait(checked, "the policy's types are checked")
    assert not api.get(POLICIES, NAME)["status"]["typeChecking"].get("expressionWarnings")
