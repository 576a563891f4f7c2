"""`dra-agent claim` as it is used by hand: several files, names, formats, and what a claim waits for."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.manifests import CLASS, claim, write
from dra_agent.cli import terminal
from dra_agent.cli.main import main
from dra_agent.standalone.protocol import Client, Delete
from eventually import eventually
from standalone.conftest import Preparer
from standalone.service_thread import HealthyDevices, ServiceThread

Command = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("agent")


@pytest.fixture
def applied(command: Command) -> Command:
    """Apply two claims of one device each, and a third one that waits."""
    write(Path("claims.yaml"), CLASS, claim("train"), claim("serve", namespace="team-a"), claim("late"))
    assert command("claim", "apply", "-f", "claims.yaml")[0] == 0
    return command


def test_files_and_directories_are_applied_together(command: Command) -> None:
    write(Path("all/10-class.yaml"), CLASS)
    write(Path("all/20-claim.yml"), claim("a"))
    write(Path("all/notes.txt"), "no YAML: [")
    write(Path("all/more/claim.json"), json.dumps({"kind": "no object of the API"}))
    write(Path("b.yaml"), claim("b"))
    code, text, _ = command("claim", "apply", "-f", "all", "b.yaml")
    assert code == 0
    assert re.findall(r"^(\S+) created", text, re.MULTILINE) == [
        "deviceclass/gpu",
        "resourceclaim/a",
        "resourceclaim/b",
    ]
    code, _, errors = command("claim", "apply", "-R", "-f", "all")
    assert code == 2 and "all/more/claim.json" in errors


def test_a_directory_without_objects_is_an_error(command: Command) -> None:
    Path("empty").mkdir()
    code, _, errors = command("claim", "apply", "-f", "empty")
    assert code == 2 and "empty: has no .yaml, .yml or .json file" in errors


def test_standard_input_is_one_of_several_files(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("class.yaml"), CLASS)
    code, _, errors = command("claim", "apply", "-f", "-", "-f", "class.yaml", "-f", "-")
    assert code == 2 and "standard input can be read once" in errors


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the agent publish the two devices that its allocator has."""
    spec = {
        "driver": "d",
        "nodeName": "n",
        "pool": {"name": "n/gpu", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}],
    }
    slices = [{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}]
    monkeypatch.setattr(HealthyDevices, "slices", lambda self: slices)


@pytest.mark.usefixtures("published")
def test_a_dry_run_changes_nothing(command: Command) -> None:
    write(Path("claims.yaml"), CLASS, claim("train"))
    code, text, _ = command("claim", "apply", "-f", "claims.yaml", "--dry-run=client")
    assert code == 0 and "deviceclass/gpu created (dry run)\n" in text
    assert "resourceclaim/train created (dry run): " in text
    assert command("claim", "list", "-o", "json")[1].strip() == "[]"
    assert command("claim", "apply", "-f", "claims.yaml")[0] == 0
    assert command("claim", "delete", "train", "--dry-run")[1] == "resourceclaim/train deleted (dry run)\n"
    code, text, _ = command("claim", "apply", "-f", "claims.yaml", "--dry-run")
    assert (code, text) == (0, "deviceclass/gpu unchanged (dry run)\nresourceclaim/train unchanged (dry run)\n")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ([claim("train", 2)], "claim default/train: spec cannot be changed once it is applied"),
        (["apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: bad}\n"], "spec: is missing"),
        ([claim("twice"), claim("twice")], "claim default/twice is there twice"),
    ],
    ids=["another spec", "an invalid class", "a claim twice"],
)
def test_a_dry_run_refuses_what_apply_refuses(command: Command, changed: list[str], message: str) -> None:
    write(Path("claims.yaml"), CLASS, claim("train"))
    assert command("claim", "apply", "-f", "claims.yaml")[0] == 0
    write(Path("changed.yaml"), *changed)
    refused = command("claim", "apply", "-f", "changed.yaml", "--dry-run")
    assert refused == command("claim", "apply", "-f", "changed.yaml")
    assert refused[0] == 1 and message in refused[2]


@pytest.mark.usefixtures("published")
def test_a_dry_run_fails_only_for_claims_that_never_fit(command: Command) -> None:
    write(Path("train.yaml"), CLASS, claim("train"))
    assert command("claim", "apply", "-f", "train.yaml")[0] == 0
    for name, count, expected in (("late", 2, 0), ("large", 3, 1)):
        write(Path("claim.yaml"), claim(name, count))
        code, text, _ = command("claim", "apply", "-f", "claim.yaml", "--dry-run", "-o", "json")
        (entry,) = json.loads(text)
        assert (code, entry["fits"], entry["fits_empty_host"]) == (expected, False, not expected)
        assert command("claim", "apply", "-f", "claim.yaml")[0] == expected


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    ("output", "printed"), [("name", "deviceclass/gpu\nresourceclaim/train\n"), ("cdi", ""), ("flags", "")]
)
def test_a_dry_run_prints_names_and_no_ids_for_scripts(command: Command, output: str, printed: str) -> None:
    write(Path("claims.yaml"), CLASS, claim("train"))
    assert command("claim", "apply", "-f", "claims.yaml", "--dry-run", "-o", output) == (0, printed, "")


def test_a_pending_claim_names_the_command_that_explains_it(command: Command) -> None:
    write(Path("claims.yaml"), CLASS, claim("a", 2), claim("late", namespace="team-a"))
    _, text, _ = command("claim", "apply", "-f", "claims.yaml")
    assert "\n  why: dra-agent explain claim/team-a/late\n" in text
    _, text, errors = command("claim", "list")
    assert errors == "why: dra-agent explain claim/team-a/late\n"
    code, explained, _ = command(*errors.split()[2:])
    assert code == 1 and explained.startswith("claim team-a/late: pending")


def test_lists_are_limited_to_a_namespace(applied: Command) -> None:
    names = [line.split()[:2] for line in applied("claim", "list")[1].splitlines()[1:]]
    assert names == [["default", "train"], ["team-a", "serve"], ["default", "late"]]
    assert applied("claim", "list", "-n", "team-a", "-o", "name")[1] == "team-a/serve\n"
    assert applied("claim", "list", "-A", "-n", "team-a")[1].count("\n") == 4
    assert applied("claim", "get", "-A")[1].count("\n") == applied("claim", "get")[1].count("\n") == 4
    holders = applied("claims", "-n", "team-a", "-o", "json")[1]
    assert [row["claim"] for row in json.loads(holders)] == ["serve"]


@pytest.mark.parametrize("spelling", ["team-a/serve", "claim/team-a/serve", "rc/team-a/serve", "uid"])
def test_claims_have_several_spellings(applied: Command, spelling: str) -> None:
    (entry,) = json.loads(applied("claim", "list", "-n", "team-a", "-o", "json")[1])
    word = entry["uid"] if spelling == "uid" else spelling
    assert json.loads(applied("claim", "get", word, "-o", "json")[1])["uid"] == entry["uid"]
    assert applied("claim", "wait", word)[0] == 0
    assert applied("explain", word)[0] == 0
    assert applied("claim", "delete", word)[1] == "resourceclaim/serve deleted\n"


def test_ids_are_printed_for_scripts(applied: Command) -> None:
    (entry,) = json.loads(applied("claim", "list", "-n", "team-a", "-o", "json")[1])
    ids = "".join(f"{name}\n" for name in entry["cdi_device_ids"])
    assert ids and applied("claim", "get", "team-a/serve", "-o", "cdi")[1] == ids
    assert applied("claim", "wait", "serve", "-n", "team-a", "-o", "cdi")[1] == ids
    assert applied("claim", "holders", "-n", "team-a", "-o", "cdi")[1] == ids
    assert applied("claim", "list", "-o", "cdi")[1].count("\n") == 2
    assert applied("claim", "apply", "-f", "claims.yaml", "-o", "cdi")[1].count("\n") == 2


def test_flags_are_one_line_for_a_container_runtime(command: Command) -> None:
    write(Path("claims.yaml"), CLASS, claim("train", 2), claim("late"))
    printed = command("claim", "apply", "-f", "claims.yaml", "-o", "flags")[1]
    first, second = json.loads(command("claim", "get", "train", "-o", "json")[1])["cdi_device_ids"]
    assert printed == f"--device {first} --device {second}\n"
    for others in (("get", "train"), ("wait", "train"), ("list",), ("holders",), ("get", "train", "train")):
        assert command("claim", *others, "-o", "flags")[1] == printed, others
    assert command("claim", "get", "late", "-o", "flags")[1] == "", "a claim that waits has no devices"


def test_flags_have_both_ids_of_a_gpu_in_the_spec_of_its_vendor(command: Command, preparer: Preparer) -> None:
    preparer.vendor_ids = ("nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555",)
    write(Path("claims.yaml"), CLASS, claim("train"))
    assert command("claim", "apply", "-f", "claims.yaml")[0] == 0
    (printed,) = command("claim", "get", "train", "-o", "flags")[1].splitlines()
    words = printed.split(" ")
    assert words[:3] == ["--device", *preparer.vendor_ids, "--device"] and len(words) == 4
    # `podman run $(dra-agent claim get train -o flags) IMAGE` gets these words: a shell expands none of them.
    assert all(shlex.quote(word) == word for word in words)


def test_names_of_holders_are_those_of_claims(applied: Command) -> None:
    assert applied("claims", "-o", "name") == (0, "default/train\nteam-a/serve\n", "")
    # They are arguments of other commands.
    assert applied("claim", "delete", *applied("claims", "-o", "name")[1].split())[0] == 0


def test_several_claims_are_shown_and_awaited(applied: Command) -> None:
    code, text, _ = applied("claim", "get", "train", "team-a/serve", "-o", "name")
    assert (code, text) == (0, "default/train\nteam-a/serve\n")
    assert applied("claim", "wait", "train", "team-a/serve", "--timeout", "1m")[0] == 0
    assert applied("claim", "wait", "train", "late", "--timeout", "0")[0] == 1


def test_missing_claims_are_errors_unless_ignored(applied: Command) -> None:
    code, _, errors = applied("claim", "get", "nope")
    assert code == 1 and "there is no claim nope in namespace default" in errors
    for flags in ((), ("-o", "name"), ("-o", "wide")):
        assert applied("claim", "get", "nope", "--ignore-not-found", *flags) == (0, "", "")
    assert applied("claim", "delete", "nope", "deviceclass/nope")[0] == 1
    assert applied("claim", "delete", "nope", "deviceclass/nope", "--ignore-not-found")[0] == 0
    unknown = "5478b5d9-ddeb-4099-94aa-a5aa610ff27d"
    assert f"there is no claim with uid {unknown}" in applied("claim", "get", unknown)[2]


def test_missing_objects_do_not_keep_others_from_being_deleted(applied: Command) -> None:
    code, text, errors = applied("claim", "delete", "nope", "train", "absent", "team-a/serve")
    assert (code, text) == (1, "resourceclaim/train deleted\nresourceclaim/serve deleted\n")
    assert [line.rpartition(" in ")[0] for line in errors.splitlines()] == [
        "dra-agent: there is no claim nope",
        "dra-agent: there is no claim absent",
    ]


def test_flags_that_have_no_effect_are_refused(applied: Command) -> None:
    for flags in (("--watch",), ("-o", "cdi"), ("-o", "flags")):
        code, text, errors = applied("claim", "list", "--classes", *flags)
        assert (code, text) == (2, "") and "is for claims; leave it out" in errors
    code, text, errors = applied("claim", "get", "train", "-A")
    assert (code, text) == (2, "") and "-A: a name and every namespace" in errors


def test_files_are_deleted_and_missing_objects_ignored(applied: Command) -> None:
    assert applied("claim", "delete", "train")[0] == 0
    code, text, _ = applied("claim", "delete", "-f", "claims.yaml", "--ignore-not-found")
    assert code == 0
    assert sorted(text.split()) == sorted(
        ["resourceclaim/serve", "deleted", "resourceclaim/late", "deleted", "deviceclass/gpu", "deleted"]
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("claim", "get", "pod/x"), "pod/x: is a pod; name a claim"),
        (("claim", "get", "a/b/c"), "a/b/c: is not a name; write NAME, NAMESPACE/NAME or claim/NAME"),
        (("claim", "delete", "claim/"), "claim/: is not a name"),
        (("explain", "node/x"), "is a node; name a claim or a pod"),
        (("explain", "pod"), "which pod?; write pod/NAME"),
        (("explain", "a", "b"), "a b: names more than one object"),
    ],
)
def test_other_words_are_usage_errors(command: Command, words: tuple[str, ...], message: str) -> None:
    code, _, errors = command(*words)
    assert code == 2 and message in errors


def test_rows_of_a_pipe_are_fields_for_awk(applied: Command) -> None:
    heading, *rows = applied("claim", "list")[1].splitlines()
    assert heading.split() == ["NAMESPACE", "NAME", "PHASE", "AGE", "DEVICES", "WHY"]
    assert [row.split()[2] for row in rows] == ["Prepared", "Prepared", "Pending"]
    assert all(re.fullmatch(r"\d+[smhd](\d+[smh])?", row.split()[3]) for row in rows)
    wide = applied("claim", "list", "-o", "wide")[1].splitlines()
    assert wide[0].split()[-3:] == ["UID", "CDI", "IDS"]


def test_an_empty_list_is_a_message(command: Command) -> None:
    assert command("claim", "list") == (0, "", "no claims\n")
    assert command("claim", "list", "-n", "team-a") == (0, "", "no claims in namespace team-a\n")
    assert command("claims", "-A") == (0, "", "no claim holds a device\n")
    assert command("claims", "-n", "team-a") == (0, "", "no claim holds a device in namespace team-a\n")
    assert command("claim", "list", "--classes") == (0, "", "no classes\n")
    assert command("claim", "list", "-o", "json")[1].strip() == "[]"


@pytest.mark.parametrize("words", [("claims",), ("claim", "holders"), ("claims", "--usage"), ("claim", "usage")])
@pytest.mark.parametrize("flag", ["--kubeconfig", "--context"])
def test_flags_of_a_cluster_are_refused_without_one(command: Command, words: tuple[str, ...], flag: str) -> None:
    code, _, errors = command(*words, flag, "x")
    assert code == 2 and f"{flag}: the agent of this host runs without Kubernetes" in errors


def test_the_age_is_shown_on_a_terminal_of_80_columns(applied: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(terminal, "is_terminal", lambda: True)
    heading = applied("claim", "list")[1].splitlines()[0]
    assert heading.split() == ["NAMESPACE", "NAME", "PHASE", "AGE", "DEVICES", "WHY"]


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_terminal_gets_whole_words(applied: Command, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(terminal, "is_terminal", lambda: True)
    lines = applied("claim", "list")[1].splitlines()
    assert max(map(len, lines)) <= max(width, 60)
    assert any(line.endswith("waits for devices that") or "waits for" in line for line in lines)


def test_watched_lists_print_changes_until_the_agent_stops(
    applied: Command, agent: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = io.StringIO()
    codes: list[int] = []
    monkeypatch.setattr("dra_agent.cli.watch.POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(sys, "stdout", printed)
    thread = threading.Thread(target=lambda: codes.append(main(["claim", "list", "--watch"])))
    thread.start()
    eventually(lambda: printed.getvalue().count("\n") == 4, printed.getvalue)
    with Client(agent.path) as client:
        client.call(Delete("ResourceClaim", "train", "default", 60.0))
    eventually(lambda: re.search(r"late +Prepared", printed.getvalue()), printed.getvalue)
    eventually(lambda: re.search(r"train +Deleted", printed.getvalue()), printed.getvalue)
    agent.stop()
    thread.join(60)
    assert codes == [1] and printed.getvalue().count("NAMESPACE") == 1


def test_structured_output_of_one_claim_is_one_object(applied: Command) -> None:
    one: Any = json.loads(applied("claim", "get", "train", "-o", "json")[1])
    several: Any = json.loads(applied("claim", "get", "train", "late", "-o", "json")[1])
    assert one["name"] == "train" and [entry["name"] for entry in several] == ["train", "late"]
