"""The commands of Helm that pages show, carried out by Helm's library: a program for machines without Helm's own.

It takes the options that it knows and no others, so a page with another option needs it here, or is wrong.
"""

import argparse
from pathlib import Path
from typing import Any

import helm_python
import yaml

Json = dict[str, Any]
TIMEOUT_S = 180


def main() -> None:
    """Carry out one command."""
    parser = argparse.ArgumentParser(prog="helm", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("install", "upgrade"):
        command = commands.add_parser(name, allow_abbrev=False)
        command.add_argument("release")
        command.add_argument("chart")
        command.add_argument("--set", action="append", default=[])
        command.add_argument("--values", action="append", default=[], type=Path)
        command.add_argument("--reset-then-reuse-values" if name == "upgrade" else "--create-namespace",
                             action="store_true")  # fmt: skip
    commands.add_parser("uninstall", allow_abbrev=False).add_argument("release")
    for command in commands.choices.values():
        command.add_argument("--namespace", required=True)
    carry_out(parser.parse_args())


def carry_out(asked: argparse.Namespace) -> None:
    """Ask the cluster of $KUBECONFIG."""
    with helm_python.Config(namespace=asked.namespace) as config:
        if asked.command == "uninstall":
            config.uninstall(asked.release, timeout=TIMEOUT_S)
        elif asked.command == "install":
            options = {"namespace": asked.namespace, "create_namespace": asked.create_namespace}
            config.install(asked.chart, asked.release, values(asked, {}), timeout=TIMEOUT_S, **options)
        else:
            before = (config.get_values(asked.release) or {}) if asked.reset_then_reuse_values else {}
            config.upgrade(asked.chart, asked.release, values(asked, before), timeout=TIMEOUT_S, reset_values=True)


def values(asked: argparse.Namespace, before: Json) -> Json:
    """Values of the release so far, under those of files, under those of options."""
    for path in asked.values:
        before = merged(before, yaml.safe_load(path.read_text()))
    for expression in asked.set:
        before = merged(before, helm_python.parse_set_string(expression))
    return before


def merged(before: Json, after: Json) -> Json:
    """One over the other, mappings field by field."""
    both = {name for name in before.keys() & after.keys() if isinstance(before[name], dict)}
    return before | after | {name: merged(before[name], after[name]) for name in both}


if __name__ == "__main__":
    main()
