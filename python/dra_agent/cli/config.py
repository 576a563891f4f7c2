"""`dra-agent config`: the configuration of the agent, and of devices in claims and classes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dra_agent.cli.output import add_output_flag
from dra_agent.cli.parser import Parser, add_group_examples, examples

if TYPE_CHECKING:
    from dra_agent.manifests import LoadedObject

_CHECK_EXAMPLES = examples(
    ("config check config.toml", "every problem of the agent's configuration, as FILE:LINE: KEY: MESSAGE"),
    ("config check - -o json", "standard input, for scripts"),
)
_SHOW_EXAMPLES = examples(("config show --config config.toml", "each value that is set, and its origin"))
_KEYS_EXAMPLES = examples(("config keys", "every key; a column shows which changes need a restart of the agent"))
_VALIDATE_EXAMPLES = examples(
    ("config validate claim.yaml classes.yaml", "the errors of the configuration in them, line by line"),
    ("config validate -", "standard input: kubectl get deviceclasses -o yaml | dra-agent config validate -"),
)
_SCHEMA_EXAMPLES = examples(("config schema > schema.json", "the JSON schema of every kind, for editors"))


def add_arguments(parser: Parser) -> None:
    """Define the verbs."""
    from dra_agent.agent.config import add_flags

    parser.add_commands(dest="verb", metavar="VERB")
    check = parser.add_command(
        "check",
        "check the agent's configuration; exit 1 if it is invalid, 2 if the file is unreadable",
        epilog=_CHECK_EXAMPLES,
    )
    check.add_argument("file", nargs="?", type=Path, help="the TOML file; - reads from a pipe; default: as --config")
    add_flags(check)
    add_output_flag(check, names=False)
    show = parser.add_command(
        "show", "show the values that the agent would start with, and their origins", epilog=_SHOW_EXAMPLES
    )
    show.add_argument("-a", "--all", action="store_true", help="show also defaults")
    add_flags(show)
    add_output_flag(show)
    keys = parser.add_command(
        "keys", "list every key of the agent's configuration, and how a change takes effect", epilog=_KEYS_EXAMPLES
    )
    add_output_flag(keys)
    validate = parser.add_command(
        "validate", "check files; exit 1 if one is invalid, 2 if one is unreadable", epilog=_VALIDATE_EXAMPLES
    )
    validate.add_argument("file", nargs="+", help="claims, templates, classes or bare parameters; - reads from a pipe")
    add_flags(validate, ("driver_name",))
    add_output_flag(validate, names=False)
    schema = parser.add_command(
        "schema", "print the JSON schema of every kind of configuration", epilog=_SCHEMA_EXAMPLES
    )
    schema.add_argument("-o", "--output", choices=("json", "yaml"), default="json", help="output format")
    add_group_examples(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    from dra_agent.cli import agent_config

    verbs = {
        "check": agent_config.check,
        "show": agent_config.show,
        "keys": agent_config.keys,
        "validate": _validate,
        "schema": _schema,
    }
    return verbs[args.verb](args)


def _schema(args: argparse.Namespace) -> int:
    from dra_agent.agent.setup_registry import known_setups
    from dra_agent.cli.output import emit
    from dra_agent.prepare.config import schema

    emit(schema(known_setups().values()), args.output)
    return 0


def _validate(args: argparse.Namespace) -> int:
    from dra_agent.agent.config import load_config
    from dra_agent.agent.setup_registry import known_setups
    from dra_agent.cli.output import emit
    from dra_agent.manifests import load_manifests
    from dra_agent.prepare.config import validate_object

    driver = load_config(args).driver_name
    setups = known_setups()
    problems: list[dict[str, object]] = []
    objects = pieces = 0
    for file in args.file:
        for loaded in load_manifests(file, strict=False):
            objects += 1
            count, errors = validate_object(loaded.value, driver, setups)
            pieces += count
            problems += [_problem(loaded, error.field, error.reason, error.hint) for error in errors]
            problems += _shape(loaded)
    if args.output != "table":
        emit({"objects": objects, "configurations": pieces, "problems": problems}, args.output)
        return 1 if problems else 0
    for problem in problems:
        field = f"{problem['field']}: " if problem["field"] else ""
        hint = f"; {problem['todo']}" if problem["todo"] else ""
        print(f"{problem['file']}:{problem['line']}: {field}{problem['message']}{hint}")
    if not problems:
        checked = f"{objects} object{'' if objects == 1 else 's'}"
        print(f"{checked}, {pieces or 'no'} configuration{'' if pieces == 1 else 's'} for {driver}: nothing wrong")
    return 1 if problems else 0


def _shape(loaded: LoadedObject) -> list[dict[str, object]]:
    """Return the errors that the API server would return: a misspelled field above the parameters hides them."""
    from dra_agent.agent.config_file import validate

    if loaded.value.get("apiVersion") != "resource.k8s.io/v1":
        return []
    return [_problem(loaded, fault.field, fault.message, None) for fault in validate(loaded.value)]


def _problem(loaded: LoadedObject, field: str, message: str, hint: str | None) -> dict[str, object]:
    return {
        "file": loaded.file,
        "line": loaded.line_of(field),
        "object": f"{loaded.kind} {loaded.name}".strip(),
        "field": field,
        "message": message,
        "todo": hint,
    }
