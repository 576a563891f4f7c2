"""`dra-agent slices template --compare` with a node of a cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dra_simulate
from dra_agent.agent.setup_registry import SIMULATED
from dra_agent.cli.main import main
from dra_cluster.cli import compared_node
from eventually import DEADLINE_S
from fake_apiserver.fake import FakeApi

Json = dict[str, Any]
Compare = Callable[..., tuple[int, str, str]]
DRIVER = "dra-agent.internal"
PROFILE = "vm-1gpu"


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return the flags of a simulated host that is built already."""
    folder = tmp_path_factory.mktemp("state")
    dra_simulate.build(PROFILE, folder / SIMULATED / PROFILE)
    return "--simulate", PROFILE, "--state-dir", str(folder)


@pytest.fixture
def compare(fake_api: FakeApi, host: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Compare with the cluster; return the exit code, the output and the errors."""
    config = fake_api.kubeconfig(tmp_path / "kubeconfig")

    def run(*flags: str) -> tuple[int, str, str]:
        code = main(["slices", "template", *host, "--compare", "--kubeconfig", str(config), *flags])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def published(fake_api: FakeApi, host: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> list[Json]:
    """Publish the slices of node-7, and return them."""
    assert main(["slices", *host, "--node-name", "node-7", "-o", "json"]) == 0
    slices: list[Json] = json.loads(capsys.readouterr().out)["items"]
    fake_api.put("nodes", {"metadata": {"name": "node-7"}})
    for entry in slices:
        fake_api.put("resourceslices", entry)
    return slices


def other(entry: Json, name: str, node: str = "node-7", **spec: Any) -> Json:
    """Return another slice with fields of its spec replaced."""
    return {**entry, "metadata": {"name": name}, "spec": {**entry["spec"], "nodeName": node, **spec}}


def test_a_node_of_the_cluster_equals_the_template(fake_api: FakeApi, compare: Compare, published: list[Json]) -> None:
    fake_api.put("resourceslices", other(published[0], "of-another-node", "node-8", devices=[]))
    fake_api.put("resourceslices", other(published[0], "of-another-driver", driver="gpu.example.com", devices=[]))
    assert compare("--node", "node-7") == (0, "node node-7 has the devices of the template\n", "")
    assert compare("--node-name", "node-7")[0] == 0
    queries = [seen.query for seen in fake_api.requests if seen.path.endswith("/resourceslices")]
    assert {query["fieldSelector"] for query in queries} == {"spec.nodeName=node-7"}
    assert not fake_api.writes()


def test_what_differs_is_named(fake_api: FakeApi, compare: Compare, published: list[Json]) -> None:
    changed = [{**published[0]["spec"]["devices"][0], "name": "gpu-of-another-slot"}]
    fake_api.put("resourceslices", other(published[0], published[0]["metadata"]["name"], devices=changed))
    code, out, _ = compare("--node", "node-7", "-o", "json")
    found = json.loads(out)
    assert code == 1 and found["node"] == "node-7"
    assert {one["subject"] for one in found["differences"]} >= {"device gpu-of-another-slot"}


def test_a_node_that_does_not_exist(compare: Compare, published: list[Json]) -> None:
    code, _, errors = compare("--node", "node-9")
    assert published and code == 2
    assert errors == "dra-agent: there is no node node-9; `kubectl get nodes` lists them\n"


def test_no_node_is_named(compare: Compare) -> None:
    code, _, errors = compare()
    assert code == 2 and errors == "dra-agent: --compare: which node of the cluster?; name it with --node\n"


def test_a_node_without_slices_of_the_driver(fake_api: FakeApi, compare: Compare, published: list[Json]) -> None:
    fake_api.wipe()
    code, _, errors = compare("--node", "node-7")
    assert code == 2 and f"node node-7: there is no slice of driver {DRIVER}; see `kubectl" in errors
    fake_api.put("resourceslices", other(published[0], "foreign", driver="gpu.example.com"))
    code, _, errors = compare("--node", "node-7")
    assert code == 2 and "it has slices of gpu.example.com: choose a driver with --driver-name" in errors


def test_earlier_generations_are_not_compared(fake_api: FakeApi, compare: Compare, published: list[Json]) -> None:
    pool = published[0]["spec"]["pool"]
    newer = {**pool, "generation": pool["generation"] + 1}
    fake_api.put("resourceslices", other(published[0], "newer", pool=newer))
    old = other(published[0], published[0]["metadata"]["name"], devices=[])
    fake_api.put("resourceslices", old)
    code, out, errors = compare("--node", "node-7")
    assert (code, out) == (0, "node node-7 has the devices of the template\n")
    assert errors == (
        f"pool {pool['name']} is compared in generation {newer['generation']}; "
        "1 slice of an earlier generation is not used\n"
    )


def test_a_pool_that_is_incomplete(fake_api: FakeApi, compare: Compare, published: list[Json]) -> None:
    pool = published[0]["spec"]["pool"]
    partial = {**pool, "generation": pool["generation"] + 1, "resourceSliceCount": 2}
    fake_api.put("resourceslices", other(published[0], "newer", pool=partial))
    code, out, errors = compare("--node", "node-7")
    assert (code, out) == (1, "")
    assert errors == (
        f"dra-agent: node node-7: pool {pool['name']} is incomplete: it has 1 of 2 slices of generation "
        f"{partial['generation']}, and 1 of earlier generations; the driver is still publishing it: repeat the "
        "command\n"
    )


def test_no_permission(fake_api: FakeApi, compare: Compare, published: list[Json]) -> None:
    fake_api.fail(403, times=None, path="/nodes/")
    assert published and compare("--node", "node-7")[0] == 0, "slices suffice"
    code, _, errors = compare("--node", "node-9")
    assert code == 2 and "whether the node exists is not known without permission to get nodes" in errors
    fake_api.fail(403, times=None, path="/resourceslices")
    code, out, errors = compare("--node", "node-7")
    assert (code, out) == (1, "") and errors.count("\n") == 1
    assert "the slices of node node-7 cannot be listed: " in errors and "grant this identity `list`" in errors


def test_a_server_that_does_not_respond(
    fake_api: FakeApi, compare: Compare, published: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared_node, "READ_TIMEOUT_S", 0.05)
    end = threading.Event()
    fake_api.hang(DEADLINE_S, times=None, when=end)
    code, _, errors = compare("--node", "node-7")
    end.set()
    assert published and code == 1 and "the API server did not respond within" in errors


def test_a_list_without_end(
    fake_api: FakeApi, compare: Compare, published: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared_node, "MAX_SLICES", 3)
    page = json.dumps({"metadata": {"continue": "more"}, "items": published})
    fake_api.fail(200, times=None, path="/resourceslices", body=page)
    code, _, errors = compare("--node", "node-7")
    assert code == 1 and "there are more than 3 objects" in errors


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"devices": "none"}, "spec.devices is not a list"),
        ({"devices": [7]}, "spec.devices[0] is not an object"),
        ({"pool": []}, "spec.pool is not an object"),
        ({"driver": 1}, "spec.driver is not a string"),
    ],
)
def test_a_slice_of_another_shape(
    fake_api: FakeApi, compare: Compare, published: list[Json], spec: Json, message: str
) -> None:
    page = json.dumps({"metadata": {}, "items": [other(published[0], "broken", **spec)]})
    fake_api.fail(200, times=None, path="/resourceslices", body=page)
    code, _, errors = compare("--node", "node-7")
    assert code == 1 and errors == f"dra-agent: ResourceSlice broken of the API server: {message}\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--node", "n1"), "--node: belongs to a comparison; write --compare too"),
        (("--context", "x"), "--context: belongs to a comparison"),
        (("template", "--kubeconfig", "x"), "--kubeconfig: belongs to a comparison"),
        (("template", "--compare", "x", "--kubeconfig", "y"), "--kubeconfig: a file and a cluster at once"),
        (("template", "--compare", "x", "--context", "y"), "--context: a file and a cluster at once"),
        (("--compare",), "--compare: belongs to a template"),
    ],
)
def test_flags_that_do_not_belong_together(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    assert main(["slices", *flags]) == 2
    assert message in capsys.readouterr().err
