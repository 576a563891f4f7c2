"""`dra-agent claim apply|get|list|delete|wait`: claims without Kubernetes, in the API's own YAML."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dra_agent.cli.output import add_output_flag
from dra_agent.cli.parser import examples
from dra_agent.standalone.claim import DEFAULT_NAMESPACE, UNDER_WAY

if TYPE_CHECKING:
    from dra_agent.manifests import LoadedObject

WAIT_TIMEOUT_S = 30.0
WAIT_FOR_AGENT_S = 10.0

_EXAMPLES = {
    "apply": (
        ("-f claim.yaml", "create its classes and claims, or change them"),
        ("-f -", "what a pipe brings"),
    ),
    "list": (("", "every claim, and why it waits"), ("--classes", "the DeviceClasses")),
    "get": (("train", "a claim with its CDI ids"), ("train -n team-a -o yaml", "everything about it")),
    "wait": (("train --timeout 60", "wait a minute until its devices are ready"),),
    "delete": (("train", "release a claim"), ("-f claim.yaml", "what a file describes")),
}
"""Arguments and effect, by verb."""


def _examples(verb: str) -> str:
    return examples(*((f"claim {verb} {arguments}".strip(), what) for arguments, what in _EXAMPLES[verb]))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the verbs."""
    from dra_agent.cli.connection import add_connection_flags

    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    apply = verbs.add_parser("apply", help="create DeviceClasses and ResourceClaims", epilog=_examples("apply"))
    apply.add_argument(
        "-f", "--filename", action="append", required=True, help="YAML or JSON file; - reads standard input"
    )

    apply.add_argument(
        "--wait-for-agent",
        type=_seconds,
        default=WAIT_FOR_AGENT_S,
        metavar="SECONDS",
        help=f"how long to wait for an agent that is starting (default {WAIT_FOR_AGENT_S:.0f})",
    )

    listing = verbs.add_parser("list", help="show every claim", epilog=_examples("list"))
    listing.add_argument("--classes", action="store_true", help="show the DeviceClasses instead")

    get = verbs.add_parser("get", help="show one claim and its CDI ids", epilog=_examples("get"))
    wait = verbs.add_parser(
        "wait", help="wait until a claim is prepared; exit 1 if that does not happen in time", epilog=_examples("wait")
    )
    delete = verbs.add_parser("delete", help="release claims", epilog=_examples("delete"))
    for verb in (get, wait):
        verb.add_argument("name")
    delete.add_argument("name", nargs="*")
    delete.add_argument("-f", "--filename", action="append", default=[], help="delete what this file describes")
    delete.add_argument("--class", action="store_true", dest="is_class", help="the names are names of DeviceClasses")
    for verb in (wait, delete):
        verb.add_argument(
            "--timeout", type=_seconds, default=WAIT_TIMEOUT_S, help=f"seconds to wait (default {WAIT_TIMEOUT_S:.0f})"
        )
    for verb in (get, wait, delete):
        verb.add_argument("-n", "--namespace", default=DEFAULT_NAMESPACE)
    for verb in (apply, listing, get, wait, delete):
        add_connection_flags(verb)
        add_output_flag(verb)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    verbs = {"apply": _apply, "list": _list, "get": _get, "wait": _wait, "delete": _delete}
    return verbs[args.verb](args)


def _apply(args: argparse.Namespace) -> int:
    from dra_agent.agent.config import load_config
    from dra_agent.cli.connection import connect
    from dra_agent.cli.output import emit
    from dra_agent.manifests import load_manifests
    from dra_agent.standalone.protocol import Apply

    objects = [loaded for filename in args.filename for loaded in load_manifests(filename)]
    _check(objects, load_config(args).driver_name)
    with connect(args, wait_s=args.wait_for_agent) as agent:
        applied = agent.call(Apply([loaded.value for loaded in objects]))
    if args.output != "table":
        emit(applied, args.output)
    else:
        for done in applied:
            print(_sentence(done))
    claims = [done["claim"] for done in applied if done.get("claim")]
    return 1 if any(map(_is_refused, claims)) else 0


def _is_refused(claim: dict[str, Any]) -> bool:
    """Whether the claim failed: it can never fit here, or its devices could not be prepared."""
    if claim["phase"] == "Allocated":
        return bool(claim["message"] != UNDER_WAY)
    return bool(not claim["fits_empty_host"] or claim["phase"] == "Failed")


def _check(objects: list[LoadedObject], driver: str) -> None:
    """Refuse what the agent does not keep, and configuration that no claim can be prepared with, by file and line."""
    from dra_agent.agent.setup_registry import known_setups
    from dra_agent.errors import UsageError
    from dra_agent.prepare.config import validate_object

    setups = known_setups()
    problems: list[str] = []
    for loaded in objects:
        if loaded.kind == "ResourceClaimTemplate":
            raise UsageError(
                "a ResourceClaimTemplate is for pods of a cluster",
                where=loaded.where("kind"),
                hint="write a ResourceClaim with the template's spec.spec as its spec",
            )
        if loaded.kind not in ("ResourceClaim", "DeviceClass"):
            raise UsageError(
                f"a {loaded.kind or 'nameless kind'} is nothing that the agent keeps",
                where=loaded.where("kind"),
                hint="apply DeviceClasses and ResourceClaims",
            )
        for error in validate_object(loaded.value, driver, setups)[1]:
            hint = f"; {error.hint}" if error.hint else ""
            problems.append(f"{loaded.where(error.field)}: {error.field}: {error.reason}{hint}")
    if problems:
        raise UsageError("\n".join(problems))


def _sentence(done: dict[str, Any]) -> str:
    claim = done.get("claim")
    if claim is None:
        return f"deviceclass/{done['name']} {done['action']}"
    text = f"resourceclaim/{done['name']} {done['action']}: {claim['phase'].lower()}"
    if claim["message"]:
        text += f": {claim['message']}"
    for device in claim["devices"]:
        text += f"\n  {', '.join(device['requests'])}: {device['device']}  {'  '.join(device['cdi_device_ids'])}"
    return text


def _list(args: argparse.Namespace) -> int:
    from dra_agent.cli.connection import connect
    from dra_agent.cli.output import emit, table
    from dra_agent.standalone.protocol import ListClaims, ListClasses

    with connect(args) as agent:
        items = agent.call(ListClasses() if args.classes else ListClaims())
    if args.output != "table":
        emit(items, args.output)
    elif args.classes:
        table(["name", "selectors"], ([c["metadata"]["name"], _selectors(c)] for c in items))
    else:
        _print_claims(items)
    return 0


def _selectors(device_class: dict[str, Any]) -> str:
    selectors = device_class["spec"].get("selectors", [])
    return "\n".join(s["cel"]["expression"].strip() for s in selectors if "cel" in s)


def _print_claims(claims: list[dict[str, Any]]) -> None:
    from dra_agent.cli.output import table

    table(
        ["namespace", "name", "phase", "devices", "why"],
        (
            [c["namespace"], c["name"], c["phase"], "\n".join(d["device"] for d in c["devices"]), c["message"]]
            for c in claims
        ),
        named=lambda row: f"{row[0]}/{row[1]}",
    )


def _get(args: argparse.Namespace) -> int:
    from dra_agent.cli.connection import connect
    from dra_agent.standalone.protocol import Get

    with connect(args) as agent:
        claim = agent.call(Get(args.namespace, args.name))
    _show(claim, args.output)
    return 0


def _wait(args: argparse.Namespace) -> int:
    from dra_agent.cli.connection import connect
    from dra_agent.cli.output import progress
    from dra_agent.standalone.protocol import Get

    with connect(args) as agent, progress(f"waiting for claim {args.name}"):
        claim = agent.call(Get(args.namespace, args.name, args.timeout))
    _show(claim, args.output)
    return 0 if claim["phase"] == "Prepared" else 1


def _show(claim: dict[str, Any], output: str) -> None:
    from dra_agent.cli.output import emit

    if output != "table":
        emit(claim, output)
        return
    _print_claims([claim])
    for cdi_id in claim["cdi_device_ids"]:
        print(f"--device {cdi_id}")


def _delete(args: argparse.Namespace) -> int:
    from dra_agent.cli.connection import connect
    from dra_agent.cli.output import emit, progress
    from dra_agent.errors import UsageError
    from dra_agent.manifests import load_manifests
    from dra_agent.standalone.protocol import Delete

    kind = "DeviceClass" if args.is_class else "ResourceClaim"
    targets = [(kind, name, args.namespace) for name in args.name]
    for filename in args.filename:
        for loaded in load_manifests(filename):
            namespace = loaded.value["metadata"].get("namespace") or DEFAULT_NAMESPACE
            targets.append((loaded.kind, loaded.name, namespace))
    if not targets:
        raise UsageError("nothing to delete", hint="give names, or a file with -f")
    outcomes = []
    # Claims first: the messages of claims name their classes.
    targets.sort(key=lambda target: target[0] == "DeviceClass")
    with connect(args) as agent, progress("releasing"):
        for target_kind, name, namespace in targets:
            deleted = agent.call(Delete(target_kind, name, namespace, args.timeout))
            outcomes.append({"kind": target_kind, "name": name, "namespace": namespace, "deleted": deleted})
    if args.output != "table":
        emit(outcomes, args.output)
    else:
        for outcome in outcomes:
            done = "deleted" if outcome["deleted"] else "is still being released"
            print(f"{outcome['kind'].lower()}/{outcome['name']} {done}")
    return 0 if all(outcome["deleted"] for outcome in outcomes) else 1


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds between 0 and 3600")
    return value
