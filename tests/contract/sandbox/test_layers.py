"""Layers: found out, asked for, and made."""

import ctypes
import itertools
import json
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from longshore_runtime.sandbox.cases import CaseOutcome, StdioCase
from longshore_runtime.sandbox.detection import detect
from longshore_runtime.sandbox.layers import Layer, LayerReport, SandboxLimits
from longshore_runtime.sandbox.sandbox import Sandbox, SandboxError
from longshore_runtime.sandbox.syscalls import ALLOWED, CHECKED
from longshore_runtime.sandbox.worker import default_python
from tests.contract.sandbox.attacks import ATTACKS, DAEMONS, ENDLESS
from tests.contract.sandbox.conftest import FULL, WITHOUT_NAMESPACES
from tests.contract.sandbox.world import LIMITS, World, survivors

_NUM_SANDBOXES: Final = 3
_SOMEBODY: Final = 54_321
_PR_CAPBSET_DROP: Final = 24
_CAP_SYS_ADMIN: Final = 21
_PYTHONS: Final = (default_python(), "/usr/bin/python3.11", "/usr/local/bin/python3.11")


def _somebody() -> None:
    os.setgroups([])
    os.setresgid(_SOMEBODY, _SOMEBODY, _SOMEBODY)
    os.setresuid(_SOMEBODY, _SOMEBODY, _SOMEBODY)


def _root_of_a_container() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN) != 0:
        raise OSError(ctypes.get_errno(), "PR_CAPBSET_DROP")


def test_every_layer_is_reported_with_a_reason_if_it_lacks() -> None:
    report = detect(default_python())
    assert set(report.reasons) == set(Layer)
    assert all(reason for layer, reason in report.reasons.items() if layer not in report.available)


def test_what_lacks_is_named() -> None:
    report = LayerReport({**dict.fromkeys(Layer), Layer.LANDLOCK: "the kernel has no Landlock"})
    assert report.missing([Layer.SECCOMP]) is None
    assert report.missing(list(Layer)) == "the sandbox cannot have Landlock (the kernel has no Landlock) here"


def test_a_sandbox_refuses_to_be_less_than_what_is_required() -> None:
    with Sandbox({Layer.SECCOMP}, LIMITS) as sandbox:
        sandbox.require([Layer.SECCOMP])
        with pytest.raises(SandboxError, match="the sandbox does not use Landlock"):
            sandbox.require([Layer.SECCOMP, Layer.LANDLOCK])


def test_a_layer_that_cannot_be_made_is_an_error_and_never_left_out(available: frozenset[Layer]) -> None:
    missing = set(Layer) - available
    if not missing:
        pytest.skip("this machine has every layer")
    with Sandbox(missing, LIMITS) as sandbox:
        with pytest.raises(SandboxError, match="the sandbox cannot have"):
            sandbox.require(missing)
        with pytest.raises(SandboxError, match="the sandbox cannot be made"):
            sandbox.run("pass", [StdioCase("", "")])


@pytest.mark.parametrize("field", ["wall_s", "memory_bytes", "num_processes", "output_bytes"])
def test_a_limit_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: must be greater than 0"):
        SandboxLimits(**{field: 0})


@pytest.mark.parametrize(
    ("become", "layers"),
    [(_somebody, FULL), (_somebody, WITHOUT_NAMESPACES), (_root_of_a_container, FULL | {Layer.USER})],
    ids=["user with namespaces", "user without namespaces", "root of a container"],
)
def test_pods_with_fewer_rights_are_as_safe(
    targets: World, become: Callable[[], None], layers: frozenset[Layer]
) -> None:
    attacks = [*ATTACKS, *DAEMONS, *ENDLESS]
    outcomes = _elsewhere(become, layers, [(attack.program(targets.names), attack.wall_s) for attack in attacks])
    assert [a for a, outcome in zip(attacks, outcomes, strict=True) if outcome not in a.contained] == []
    assert targets.is_unharmed()
    assert survivors() == []


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_no_system_call_is_both_allowed_and_checked(machine: str) -> None:
    allowed, checked = ALLOWED[machine], CHECKED[machine]
    assert not set(allowed.values()) & set(checked.values())
    assert len(set(allowed.values())) == len(allowed)
    assert len(set(checked.values())) == len(checked)


def _elsewhere(
    become: Callable[[], None], layers: frozenset[Layer], programs: list[tuple[str, float]]
) -> list[CaseOutcome]:
    """Outcomes of programs in the sandbox of a process that first gave up rights."""
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else; the other tests run as this user already")
    python = next((python for python in _PYTHONS if _can_run(python)), None)
    if python is None:
        pytest.skip("no Python that every user may run")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become()
            os.write(write, json.dumps(_run_all(python, layers, programs)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        reported = json.loads(pipe.read())
    os.waitpid(child, 0)
    if isinstance(reported, str):
        pytest.skip(reported)
    return [CaseOutcome(outcome) for outcome in reported]


def _run_all(python: str, layers: frozenset[Layer], programs: list[tuple[str, float]]) -> list[str] | str:
    detect.cache_clear()  # What was found out is the parent's.
    if missing := detect(python).missing(layers):
        return missing
    case = StdioCase("", "contained")

    def run_some(first: int) -> list[tuple[int, str]]:
        with Sandbox(layers, LIMITS, python=python) as sandbox:
            return [
                (number, sandbox.run(program, [case], timeouts_s=[wall_s])[0].outcome.value)
                for number, (program, wall_s) in enumerate(programs)
                if number % _NUM_SANDBOXES == first
            ]

    # Most of the time, programs wait for their end; and programs beside one another are one more thing to withstand.
    with ThreadPoolExecutor(_NUM_SANDBOXES) as pool:
        return [outcome for _, outcome in sorted(itertools.chain(*pool.map(run_some, range(_NUM_SANDBOXES))))]


def _can_run(python: str) -> bool:
    try:
        subprocess.run([python, "-c", ""], user=_SOMEBODY, group=_SOMEBODY, extra_groups=[], check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
