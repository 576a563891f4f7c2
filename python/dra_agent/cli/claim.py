"""`dra-agent claim VERB`: ResourceClaims of this host in YAML, their devices, and commands that use them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dra_agent.api_object import DEFAULT_NAMESPACE
from dra_agent.cli import claim_run, claims
from dra_agent.cli.flags import (
    add_dry_run_flag,
    add_filename_flags,
    add_ignore_not_found_flag,
    add_namespace_flags,
    add_timeout_flag,
    add_watch_flag,
)
from dra_agent.cli.output import add_output_flag
from dra_agent.cli.parser import Parser, add_group_examples, examples

if TYPE_CHECKING:
    from dra_agent.cli.object_names import ObjectName
    from dra_agent.standalone.protocol import Client

WAIT_TIMEOUT_S = 30.0
WAIT_FOR_AGENT_S = 10.0

_EXAMPLES = {
    "apply": (
        ("-f claim.yaml", "create its classes and claims, or change them"),
        ("-f classes/ -f - --dry-run", "check a directory and standard input, but change nothing"),
    ),
    "list": (
        ("", "every claim, and why it waits"),
        ("-n team-a --watch", "the claims of a namespace, and their changes"),
        ("--classes", "the DeviceClasses"),
    ),
    "get": (
        ("train", "a claim with its CDI ids"),
        ("team-a/train -o yaml", "everything about it"),
        ("train -o cdi", "its CDI ids only, for scripts"),
        ("train -o flags", "the same as --device flags, for the command line of podman or docker"),
    ),
    "wait": (("train --timeout 60", "wait a minute until its devices are ready"),),
    "delete": (
        ("train", "release a claim"),
        ("-f claim.yaml --ignore-not-found", "the objects of a file; missing ones are ignored"),
        ("deviceclass/gpu", "a DeviceClass"),
    ),
}
"""Arguments and effect, by verb."""


def add_arguments(parser: Parser) -> None:
    """Define the verbs."""
    from dra_agent.cli.connection import add_connection_flags

    parser.add_commands(dest="verb", metavar="VERB")
    apply = _add_verb(parser, "apply", "create DeviceClasses and ResourceClaims")
    listing = _add_verb(parser, "list", "show every claim")
    get = _add_verb(parser, "get", "show claims and their CDI ids")
    wait = _add_verb(parser, "wait", "wait until claims are prepared; exit 1 if that does not happen in time")
    delete = _add_verb(parser, "delete", "release claims, or delete DeviceClasses")

    add_filename_flags(apply, "DeviceClasses and ResourceClaims", required=True)
    add_dry_run_flag(apply)
    add_timeout_flag(apply, WAIT_FOR_AGENT_S, "--wait-for-agent", "for an agent that is starting")

    listing.add_argument("--classes", action="store_true", help="show the DeviceClasses instead")
    add_namespace_flags(listing, default="every namespace", every=True)
    for verb in (listing, get):
        add_watch_flag(verb)

    get.add_argument("name", nargs="*", metavar="CLAIM", help=f"{_NAME}; without any, every claim")
    wait.add_argument("name", nargs="+", metavar="CLAIM", help=_NAME)
    delete.add_argument("name", nargs="*", metavar="CLAIM", help=f"{_NAME}; or deviceclass/NAME")
    add_filename_flags(delete, "the objects to delete")
    delete.add_argument("--class", action="store_true", dest="is_class", help="the names are names of DeviceClasses")
    add_dry_run_flag(delete)
    for verb in (wait, delete):
        add_timeout_flag(verb, WAIT_TIMEOUT_S)
    add_namespace_flags(get, default=f"{DEFAULT_NAMESPACE}; without a name, every namespace", every=True)
    for verb in (wait, delete):
        add_namespace_flags(verb, default=DEFAULT_NAMESPACE)
    for verb in (get, delete):
        add_ignore_not_found_flag(verb)
    for verb in (apply, listing, get, wait, delete):
        add_connection_flags(verb)
        add_output_flag(verb, cdi=verb is not delete)
    claim_run.add_verb(parser)
    claims.add_verbs(parser)
    add_group_examples(parser)


_NAME = "NAME, NAMESPACE/NAME or uid"


def _add_verb(parser: Parser, name: str, summary: str) -> Parser:
    epilog = examples(*((f"claim {name} {arguments}".strip(), effect) for arguments, effect in _EXAMPLES[name]))
    return parser.add_command(name, summary, epilog=epilog)


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    if args.verb in ("holders", "usage", "release"):
        return claims.run(args)
    if args.verb == "run":
        return claim_run.run(args)
    if args.verb == "apply":
        from dra_agent.cli.claim_apply import run as run_verb
    elif args.verb == "delete":
        from dra_agent.cli.claim_delete import run as run_verb
    else:
        from dra_agent.cli.claim_list import run as run_verb
    return run_verb(args)


def key_of(agent: Client, named: ObjectName, namespace: str | None) -> tuple[str, str]:
    """Return the namespace and name of a claim that is named by name or uid; `namespace` is that of `-n`.

    Raises:
        NoSuchObjectError: No claim has this uid.
    """
    from dra_agent.errors import NoSuchObjectError

    if not named.is_uid:
        return named.namespace or namespace or DEFAULT_NAMESPACE, named.name
    found = next((view for view in agent.claims(whole=False) if view["uid"] == named.name), None)
    if found is None:
        raise NoSuchObjectError(f"there is no claim with uid {named.name}")
    return found["namespace"], found["name"]


def explain_command(view: dict[str, Any]) -> str:
    """Return the command that shows why a claim waits."""
    in_namespace = "" if view["namespace"] == DEFAULT_NAMESPACE else f"{view['namespace']}/"
    return f"dra-agent explain claim/{in_namespace}{view['name']}"
