"""A page of the docs whose commands a test runs: all of them, as they are written, in the order of the page."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

Json = dict[str, Any]

ROOT: Final = Path(__file__).parents[3]
PAGES: Final = ROOT / "docs" / "how-to"
_BLOCK: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)
_TIMEOUT_S: Final = 120


@dataclass(frozen=True)
class Command:
    """A command of a page, and the lines that the page shows below it."""

    text: str
    shown: str = ""


@dataclass(frozen=True)
class Shell:
    """A shell in a folder with the files of the checkout that pages name, on one cluster."""

    folder: Path
    kubeconfig: Path

    @classmethod
    def prepared(cls, folder: Path, kubeconfig: Path) -> "Shell":
        """With a program for each that pages use; kubectl is that of the machine."""
        programs = folder / "bin"
        programs.mkdir(parents=True)
        for name, module in (("helm", "tests.contract.how_to.helm_program"), ("longshore", "longshore_cli")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
            program.chmod(0o755)
        for name in ("charts", "crds", "manifests"):
            (folder / name).symlink_to(ROOT / name)
        return cls(folder, kubeconfig)

    def run(self, text: str, namespace: str = "default") -> str:
        """Run a command; returns what it prints. `namespace`: where it looks if it names none."""
        access = yaml.safe_load(self.kubeconfig.read_text())
        for context in access["contexts"]:
            context["context"]["namespace"] = namespace
        path = self.folder / f"{namespace}.kubeconfig"
        path.write_text(yaml.safe_dump(access))
        environment = {
            "KUBECONFIG": str(path),
            "HOME": str(self.folder),
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
        }
        done = subprocess.run(
            ["bash", "-euc", text], cwd=self.folder, env=environment, capture_output=True, text=True, check=False,
            timeout=_TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {text}\n{done.stdout}{done.stderr}"
        return done.stdout


class Page:
    """A page that is followed from its first command to its last."""

    def __init__(self, name: str, shell: Shell, not_run: Mapping[str, str]) -> None:
        """`not_run`: commands that a test cannot run, by how they begin, with the reason."""
        self._text = (PAGES / name).read_text(encoding="utf-8")
        self._shell = shell
        found = commands(self._text)
        self._left = [one for one in found if not any(one.text.startswith(start) for start in not_run)]
        self._name = name

    def run(self, start: str, namespace: str = "default", **names: str) -> "Done":
        """Run the next command, which begins with `start`; `names` take the place of words such as NAME."""
        assert self._left, f"{self._name} has no further command"
        command = self._left.pop(0)
        assert command.text.startswith(start), f"{self._name} says: {command.text}"
        text = re.sub(r"\b[A-Z]+\b", lambda word: names.get(word[0], word[0]), command.text)
        return Done(self._shell.run(text, namespace), command.shown)

    def yaml(self, *fields: str, about: str = "") -> Json:
        """The first block of YAML with these fields, in it or in its spec or metadata; `about`: a word that it has."""
        for block in _BLOCK.finditer(self._text):
            if block["language"] != "yaml" or about not in block["text"]:
                continue
            found = yaml.safe_load(block["text"])
            parts = (found, found.get("spec", {}), found.get("metadata", {})) if isinstance(found, dict) else ()
            if any(set(fields) <= part.keys() for part in parts):
                return dict(found)
        raise AssertionError(f"{self._name} shows no YAML with {', '.join(fields)}")

    def save(self, name: str, *fields: str) -> None:
        """Save such a block as a file, as the page says."""
        assert f"`{name}`" in self._text, f"{self._name} does not say how to make {name}"
        (self._shell.folder / name).write_text(yaml.safe_dump(self.yaml(*fields)))

    def ends_here(self) -> None:
        """Check that no command of the page is left."""
        assert self._left == [], f"{self._name} has more commands"


@dataclass(frozen=True)
class Done:
    """What a command printed, and what the page shows."""

    printed: str
    shown: str


def commands(text: str) -> list[Command]:
    """Commands in the blocks of a page: lines after `$ ` in those with output, every line in those of no language."""
    found = []
    for block in _BLOCK.finditer(text):
        lines = re.sub(rf"^{block['indent']}", "", block["text"], flags=re.MULTILINE)
        if block["language"] == "console":
            for one in re.split(r"^\$ ", lines, flags=re.MULTILINE)[1:]:
                command, _, shown = one.partition("\n")
                found.append(Command(command, shown.strip()))
        elif not block["language"]:
            found += [Command(one) for one in re.sub(r" *\\\n *", " ", lines).strip().splitlines()]
    return found
