"""`make setup` says at once what is missing, before it creates anything."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOLS = ("bash", "sh", "make", "sed", "grep", "tail", "env", "cat", "touch", "expand")


class Machine:
    """A PATH on which only the Pythons of the test are, and where the virtual environment would be."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.venv = directory / "venv"
        self.bin.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, f"{tool} is needed for this test"
            (self.bin / tool).symlink_to(found)

    def add(self, name: str, script: str) -> None:
        """A program on the PATH."""
        program = self.bin / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def make(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run make as a user does, with nothing else in the environment."""
        pythons = f"PYTHONS={self.bin}/distribution python3.11 python3 python"
        command = ["make", "--no-print-directory", "-C", str(ROOT), f"VENV={self.venv}", pythons, *arguments]
        environment = {"PATH": str(self.bin), "HOME": os.environ.get("HOME", "/")}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("target", ["quickstart", "test", "setup"])
def test_without_python_every_target_says_so_and_creates_nothing(machine: Machine, target: str) -> None:
    done = machine.make(target)
    assert done.returncode != 0
    assert "error: Longshore needs Python 3.11, and there is none on the PATH. Install it (Debian 12:" in done.stderr
    assert not machine.venv.exists()


def test_debians_python_without_venv_is_distinguished(machine: Machine) -> None:
    machine.add("python3.11", 'case "$2" in *ensurepip*) exit 1;; *print*) echo 3.11;; esac')
    done = machine.make("setup")
    assert "error: python3.11 lacks the modules venv and ensurepip" in done.stderr
    assert "apt-get install python3-venv" in done.stderr
    assert not machine.venv.exists()


def provision(machine: Machine, pip: str) -> str:
    """What pip was asked for, by a Python whose venv has this pip."""
    asked = machine.bin / "asked"
    machine.add("pip", f'case "$1" in config) {pip};; install) echo "cert=$PIP_CERT $*" > {asked};; esac')
    create = f"mkdir -p {machine.venv}/bin && cp {machine.bin}/pip {machine.venv}/bin/pip"
    machine.add("python3.11", f'if [ "$1" = -m ]; then {create}; else exec {sys.executable} "$@"; fi')
    for tool in ("mkdir", "cp"):
        (machine.bin / tool).symlink_to(str(shutil.which(tool)))
    command = [str(ROOT / "tools/provision"), "python3.11", str(machine.venv), "uv==1"]
    trusted = machine.bin / "bundle.pem"
    trusted.touch()
    environment = {"PATH": str(machine.bin), "SSL_CERT_FILE": str(trusted)}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return asked.read_text().strip()


def test_pip_trusts_the_certificates_that_the_system_trusts(machine: Machine) -> None:
    reported = provision(machine, pip="true")
    assert reported == f"cert={machine.bin}/bundle.pem install --quiet --disable-pip-version-check uv==1"
