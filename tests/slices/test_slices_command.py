from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.agent.setup_registry import SIMULATED
from dra_agent.cli.main import main
from dra_agent.manifests import parse_objects


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A state directory with the simulated host already built, which takes seconds."""
    folder = tmp_path_factory.mktemp("state")
    dra_simulate.build("dgx-h100", folder / SIMULATED / "dgx-h100")
    return str(folder)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["slices", *argv]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_json_and_yaml_output_are_valid_api_objects(
    capsys: pytest.CaptureFixture[str], state_dir: str, output: str
) -> None:
    text = run(capsys, "--simulate", "dgx-h100", "--node-name", "node-1", "--state-dir", state_dir, "-o", output)
    slices = parse_objects(text, "slices")
    assert [(loaded.kind, loaded.value["spec"]["pool"]["name"]) for loaded in slices] == [
        ("ResourceSlice", "node-1/gpu"),
        ("ResourceSlice", "node-1/nic"),
    ]
    gpus = slices[0].value["spec"]["devices"]
    assert len(gpus) == 8
    assert gpus == sorted(gpus, key=lambda gpu: gpu["attributes"]["resource.kubernetes.io/numaNode"]["int"])


def test_the_table_has_a_row_per_slice(capsys: pytest.CaptureFixture[str], state_dir: str) -> None:
    text = run(capsys, "--simulate", "dgx-h100", "--node-name", "node-1", "--state-dir", state_dir)
    rows = [line.split() for line in text.splitlines() if "node-1/" in line]
    assert [row[:4] for row in rows] == [
        ["node-1/gpu", "00000-dra-agent.internal-node-1-gpu", "1", "8"],
        ["node-1/nic", "00000-dra-agent.internal-node-1-nic", "1", rows[1][3]],
    ]


def test_a_host_without_devices_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    argv = ("--sysfs-root", str(tmp_path), "--node-name", "node-1")
    assert run(capsys, *argv) == "node-1 has no device that can be claimed\n"
    assert json.loads(run(capsys, *argv, "-o", "json"))["items"] == []


def test_device_rules_of_the_config_apply_to_slices(capsys: pytest.CaptureFixture[str], state_dir: str) -> None:
    config = Path(__file__).parents[2] / "examples/agent/latency.toml"
    argv = ("--simulate", "dgx-h100", "--state-dir", state_dir, "--config", str(config), "-o", "json")
    slices = json.loads(run(capsys, *argv))["items"]
    devices = [device for slice_ in slices for device in slice_["spec"]["devices"]]
    measured = [device["attributes"] for device in devices if "latency" in device["attributes"]]
    assert measured
    values = {tuple(attributes[name]["string"] for name in ("type", "vendor", "latency")) for attributes in measured}
    assert values == {("nic", "mellanox", "sub-microsecond")}


def test_a_template_equals_another_node_of_its_kind(
    capsys: pytest.CaptureFixture[str], state_dir: str, tmp_path: Path
) -> None:
    host = ("--simulate", "dgx-h100", "--state-dir", state_dir)
    node = tmp_path / "node.json"
    node.write_text(run(capsys, *host, "--node-name", "node-7", "-o", "json"))
    assert main(["slices", "template", *host]) == 0
    printed = capsys.readouterr()
    template = [loaded.value for loaded in parse_objects(printed.out, "template")]
    assert {entry["spec"]["nodeName"] for entry in template} == {"node-name"}
    assert {entry["spec"]["pool"]["name"] for entry in template} == {"node-name/gpu", "node-name/nic"}
    assert "GPU-" not in printed.out and "mac:" not in printed.out
    assert "left out, as they differ between nodes: ibPortGUID, ibSubnetPrefix, mac, uuid\n" in printed.err
    assert "warning: the devices of pool nic are not alike (attribute linkSpeed" in printed.err
    compare = ["slices", "template", *host, "--compare", str(node)]
    assert main(compare) == 0
    assert capsys.readouterr().out == "node node-7 has the devices of the template\n"
    node.write_text(node.read_text().replace("NVIDIA H100 80GB HBM3", "NVIDIA H100", 1))
    assert main([*compare, "-o", "json"]) == 1
    result = json.loads(capsys.readouterr().out)
    (difference,) = result["differences"]
    assert (result["node"], difference["field"]) == ("node-7", "attribute productName")
    assert (difference["template"], difference["node"]) == ("NVIDIA H100 80GB HBM3", "NVIDIA H100")
    assert main([*compare, "--node-name", "node-8"]) == 2
    assert "has no slice of driver dra-agent.internal on node node-8" in capsys.readouterr().err


def test_earlier_generations_in_a_file_are_not_compared(
    capsys: pytest.CaptureFixture[str], state_dir: str, tmp_path: Path
) -> None:
    host = ("--simulate", "dgx-h100", "--state-dir", state_dir)
    listed = json.loads(run(capsys, *host, "--node-name", "node-7", "-o", "json"))
    old = copy.deepcopy(listed["items"][0])
    old["metadata"]["name"] += "-old"
    old["spec"]["devices"].pop()
    pool = listed["items"][0]["spec"]["pool"]
    pool["generation"] += 1
    file = tmp_path / "node.json"
    file.write_text(json.dumps({**listed, "items": [old, *listed["items"]]}))
    compare = ["slices", "template", *host, "--compare", str(file)]
    assert main(compare) == 0
    note = f"pool {pool['name']} is compared in generation {pool['generation']}; 1 slice of an earlier generation is"
    assert note in capsys.readouterr().err
    pool["resourceSliceCount"] += 1
    file.write_text(json.dumps(listed))
    assert main(compare) == 1
    assert "is incomplete: it has 1 of 2 slices of generation" in capsys.readouterr().err


def test_annotations_of_cluster_api_count_the_gpus(capsys: pytest.CaptureFixture[str], state_dir: str) -> None:
    argv = ("template", "--form", "cluster-api", "--simulate", "dgx-h100", "--state-dir", state_dir, "-o", "json")
    assert json.loads(run(capsys, *argv)) == {
        "capacity.cluster-autoscaler.kubernetes.io/dra-driver": "dra-agent.internal",
        "capacity.cluster-autoscaler.kubernetes.io/gpu-count": "8",
    }


def test_the_form_of_karpenter_binds_devices_of_one_subnet(capsys: pytest.CaptureFixture[str], state_dir: str) -> None:
    argv = ("slices", "template", "--form", "karpenter", "--simulate", "dgx-h100", "--state-dir", state_dir)
    assert main([*argv, "-o", "json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    pools = {entry["pool"]["name"]: entry for entry in found["resourceSliceTemplates"]}
    assert pools.keys() == {"node-name/gpu", "node-name/nic"}
    assert len(pools["node-name/gpu"]["devices"]) == 8 and "GPU-" not in printed.out
    bound = {entry["attribute"]: entry["devices"] for entry in found["attributeBindings"]}
    assert bound.keys() == {"dra-agent.internal/ibSubnetPrefix"}
    names = {device["name"] for device in pools["node-name/nic"]["devices"]}
    assert {device["device"] for device in bound["dra-agent.internal/ibSubnetPrefix"]} <= names
    assert "Cluster Autoscaler" not in printed.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--compare", "x"), "--compare: belongs to a template; write `dra-agent slices template`"),
        (("--form", "slices"), "--form: belongs to a template"),
        (("template", "--watch"), "--watch: a template does not change"),
        (("template", "--compare", "x", "--form", "cluster-api"), "only slices can be compared"),
        (("template", "--compare", "x", "--form", "karpenter"), "only slices can be compared"),
    ],
)
def test_flags_of_a_template_are_checked(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    assert main(["slices", *argv]) == 2
    assert message in capsys.readouterr().err
