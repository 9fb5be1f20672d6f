"""What the builds of the images run: their RUN instructions are executed, with programs that only note their calls."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
IMAGES: Final = {
    "operator": ("operator", {}),
    "runtime": ("runtime", {"VLLM": "vllm-gpu"}),
    "runtime-cpu": ("runtime", {"VLLM": "vllm-cpu"}),
}
"""Dockerfile and build arguments."""
PYTHONS: Final = ("python", "pip", "uv")
PROGRAMS: Final = ("apt-get", "rm", "mkdir", "useradd", *PYTHONS)
"""All that a build may call, besides what the shell has."""
STUB: Final = """#!/bin/sh
echo "${{0##*/}} $*" >> {calls}
if [ "${{0##*/}} $1 $2" = "python -m venv" ]; then
  for directory in "$@"; do :; done
  {mkdir} -p "$directory/bin"
  {cp} {pythons} "$directory/bin"
fi
"""


def instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Keyword and argument of each, without comments; lines that end with a backslash go on."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    for instruction in "\n".join(lines).replace("\\\n", " ").splitlines():
        if instruction.strip():
            keyword, _, argument = instruction.partition(" ")
            yield keyword, argument.strip()


class Build:
    """A build in a directory: `/opt` is in there, and every program is one that notes its call."""

    def __init__(self, directory: Path) -> None:
        self._opt, self._bin, self._calls = directory / "opt", directory / "bin", directory / "calls"
        self._bin.mkdir()
        pythons = " ".join(str(self._bin / name) for name in PYTHONS)
        stub = STUB.format(calls=self._calls, mkdir=shutil.which("mkdir"), cp=shutil.which("cp"), pythons=pythons)
        for name in PROGRAMS:
            (self._bin / name).write_text(stub)
            (self._bin / name).chmod(0o755)

    def calls(self, image: str) -> list[list[str]]:
        """Programs that are called, with their arguments."""
        name, arguments = IMAGES[image]
        variables = {"PATH": str(self._bin)}
        for keyword, argument in instructions((ROOT / f"images/{name}.Dockerfile").read_text()):
            if keyword == "ARG":
                variable, _, default = self._placed(argument).partition("=")
                variables[variable] = arguments.get(variable, "".join(shlex.split(default)))
            elif keyword == "ENV":
                variables |= {key: self._expanded(value, variables) for key, value in self._settings(argument)}
            elif keyword == "RUN":
                self._run(self._placed(argument), variables)
        calls = self._calls.read_text().replace(f"{self._opt}/", "/opt/")
        return [shlex.split(call) for call in calls.splitlines()]

    def _run(self, command: str, variables: Mapping[str, str]) -> None:
        subprocess.run(["/bin/sh", "-euc", command], env=dict(variables), cwd=self._bin.parent, check=True)

    def _placed(self, text: str) -> str:
        assert not re.search(r"(>|\btee\b|\bcp\b|\bln\b)", text), f"this test would write for {text!r}"
        return text.replace("/opt/", f"{self._opt}/")

    def _settings(self, argument: str) -> list[tuple[str, str]]:
        return [(key, value) for key, _, value in (one.partition("=") for one in shlex.split(self._placed(argument)))]

    @staticmethod
    def _expanded(value: str, variables: Mapping[str, str]) -> str:
        return re.sub(r"\$\{?(\w+)\}?", lambda found: variables[found[1]], value)


@pytest.fixture(params=IMAGES)
def image(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def calls(image: str, tmp_path: Path) -> list[list[str]]:
    return Build(tmp_path).calls(image)


def installs(calls: list[list[str]], program: str) -> list[list[str]]:
    return [call for call in calls if call[0] == program and "install" in call]


def test_every_dependency_has_its_hash_checked(image: str, calls: list[list[str]]) -> None:
    dependencies, itself = installs(calls, "uv")
    assert "--require-hashes" in dependencies
    lock = "requirements-gpu.lock" if image == "runtime" else "requirements.lock"
    assert [one for one in dependencies if one.endswith(".lock")] == [lock]
    assert {"--no-deps", "--require-build-hashes", "requirements.lock"} <= set(itself)
    assert itself[-1] == "."


def test_modules_are_compiled_once_and_not_at_every_start(calls: list[list[str]]) -> None:
    assert all("--compile-bytecode" in install for install in installs(calls, "uv"))


def test_only_the_image_for_gpus_has_a_compiler_and_only_that_for_cpus_what_vllm_needs_there(
    image: str, calls: list[list[str]]
) -> None:
    packages = {word for call in installs(calls, "apt-get") for word in call[2:] if not word.startswith("-")}
    expected = {"operator": set(), "runtime": {"g++"}, "runtime-cpu": {"libnuma1", "util-linux"}}
    assert packages == expected[image]


def test_the_build_imports_what_the_image_runs(image: str, calls: list[list[str]]) -> None:
    (check,) = [call for call in calls if any(word.endswith("check_imports.py") for word in call)]
    checked = set(check)
    assert {"longshore.*", "longshore_kube.*"} <= checked
    if image == "operator":
        assert "longshore_operator.*" in checked
    else:
        assert {"longshore_runtime.*", "torch", "vllm"} <= checked
        assert ("vllm._C" in checked) == (image == "runtime-cpu"), "the compiled part for GPUs needs their driver"


def test_uv_and_pip_trust_the_certificates_of_the_base(image: str) -> None:
    name, _ = IMAGES[image]
    declared = " ".join(
        argument
        for keyword, argument in instructions((ROOT / f"images/{name}.Dockerfile").read_text())
        if keyword in ("ARG", "ENV")
    )
    assert "UV_SYSTEM_CERTS=true" in declared
    assert "PIP_CERT=/etc/ssl/certs/ca-certificates.crt" in declared


def test_comments_and_continued_lines_are_read_as_a_builder_reads_them() -> None:
    text = "# RUN no\nRUN one \\\n  # and no\n    && two\nENV A=1"
    assert [(keyword, argument.split()) for keyword, argument in instructions(text)] == [
        ("RUN", ["one", "&&", "two"]), ("ENV", ["A=1"])
    ]  # fmt: skip


class TestContext:
    """What builders send: `.dockerignore` leaves out everything but what the Dockerfiles copy."""

    lines: Final = [line for line in (ROOT / ".dockerignore").read_text().split("\n") if line and line[0] != "#"]
    let_in: Final = [line[1:] for line in lines if line.startswith("!")]
    copied: Final = sorted(
        {
            source
            for name in ("operator", "runtime")
            for keyword, argument in instructions((ROOT / f"images/{name}.Dockerfile").read_text())
            if keyword == "COPY" and not argument.startswith("--from")
            for source in argument.split()[:-1]
        }
    )

    def test_everything_is_left_out_first(self) -> None:
        assert self.lines[0] == "*"

    def test_what_is_copied_is_let_in_and_exists(self) -> None:
        assert self.copied
        for source in self.copied:
            assert (ROOT / source).exists(), source
            assert any(source == name or source.startswith(f"{name}/") for name in self.let_in), source

    def test_nothing_else_is_let_in(self) -> None:
        for name in self.let_in:
            assert any(source == name or source.startswith(f"{name}/") for source in self.copied), name

    @pytest.mark.parametrize("left", ["runtime/longshore/__pycache__", "runtime/longshore.egg-info"])
    def test_what_a_checkout_collects_stays_out(self, left: str) -> None:
        after = self.lines[self.lines.index("!runtime") :]
        patterns = [line for line in after if not line.startswith("!")]
        assert any(pattern.startswith("**/") and fnmatch(Path(left).name, pattern[3:]) for pattern in patterns)
