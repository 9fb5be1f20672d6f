"""Programs that want out: each is contained, earns nothing, harms no neighbour, and leaves nothing behind."""

import os
import subprocess
import sys

import pytest

from longshore_runtime.sandbox import worker
from longshore_runtime.sandbox.cases import CaseOutcome, FunctionCase, StdioCase
from longshore_runtime.sandbox.sandbox import Sandbox
from tests.contract.sandbox.attacks import ATTACKS, DAEMONS, ENDLESS, Attack
from tests.contract.sandbox.forgeries import EARLY_END_CASES, EARLY_ENDS, EARNS_NOTHING, FORGED, FORGED_CASES
from tests.contract.sandbox.world import MARK, World, survivors


@pytest.mark.parametrize("attack", [*ATTACKS, *DAEMONS, *ENDLESS], ids=str)
def test_an_attack_is_contained_and_the_next_sample_runs_as_ever(
    sandbox: Sandbox, targets: World, attack: Attack
) -> None:
    (result,) = sandbox.run(attack.program(targets.names), [StdioCase("", "contained")], timeouts_s=[attack.wall_s])
    assert result.outcome in attack.contained, result
    assert targets.is_unharmed()
    assert survivors() == []
    (after,) = sandbox.run("print(sum(map(int, input().split())))", [StdioCase("1 2", "3")])
    assert after.outcome is CaseOutcome.PASSED


BEGUN = "import time; print(flush=True); time.sleep(60)"


def wait_begun(process: subprocess.Popen[bytes]) -> None:
    """Popen returns while the kernel still prepares the new program, which has no arguments and environment by then."""
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"


@pytest.mark.parametrize(
    ("arguments", "environment"), [([MARK], {}), ([], worker.ENVIRONMENT)], ids=["mark", "environment"]
)
def test_what_an_attack_leaves_behind_is_found_whatever_its_program(
    arguments: list[str], environment: dict[str, str]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", BEGUN, *arguments], env=environment, stdout=subprocess.PIPE
    ) as daemon:
        try:
            wait_begun(daemon)
            assert [process.pid for process in survivors(timeout_s=0.5)] == [daemon.pid]
        finally:
            daemon.kill()


def test_what_another_process_leaves_behind_is_not_taken_for_this_ones(targets: World) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", BEGUN, MARK], stdout=subprocess.PIPE) as daemon:
        try:
            wait_begun(daemon)
            child = os.fork()
            if child == 0:
                os._exit(len(survivors(timeout_s=0.0)))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            daemon.kill()


def test_what_outlives_its_parents_is_found(targets: World) -> None:
    source = (
        "import subprocess, sys; command = [sys.executable, '-S', '-c', 'print(flush=True); input()', sys.argv[1]]; "
        "subprocess.Popen(command, stdout=subprocess.PIPE).stdout.readline()"
    )
    ready, kept = os.pipe()
    subprocess.run([sys.executable, "-S", "-c", source, MARK], stdin=ready, check=True)
    os.close(ready)
    (orphan,) = survivors(timeout_s=0.2)
    os.close(kept)
    orphan.wait()


@pytest.mark.parametrize("program", EARLY_ENDS)
def test_an_early_end_without_an_answer_earns_nothing(sandbox: Sandbox, program: str) -> None:
    results = sandbox.run(program, EARLY_END_CASES)
    assert all(result.outcome in EARNS_NOTHING for result in results), results


@pytest.mark.parametrize("program", FORGED)
def test_a_forged_value_earns_nothing(sandbox: Sandbox, program: str) -> None:
    (result,) = sandbox.run(program, FORGED_CASES)
    assert result.outcome in EARNS_NOTHING, result


def test_the_expected_answer_is_nowhere_in_the_sandbox(sandbox: Sandbox) -> None:
    (result,) = sandbox.run(_SEARCH, [FunctionCase("f", ["asked-", "for"], "answer-" + "3b" * 16)])
    assert result.detail == "returned ['asked-for']"


def test_nothing_of_a_sample_is_in_the_memory_of_the_next(sandbox: Sandbox) -> None:
    sandbox.run("answer = 'answer-' + '4c' * 16\nkeep = [answer] * 10\nprint(answer)", [StdioCase("answer-4c4c", "")])
    (result,) = sandbox.run(_SEARCH, [FunctionCase("f", ["asked-", "for"], None)])
    assert result.detail == "returned ['asked-for']"


def test_what_a_sample_changes_is_gone_for_the_next(sandbox: Sandbox) -> None:
    sandbox.run(
        "import builtins, math, os\nbuiltins.print = None\nmath.pi = 3\nos.environ['X'] = '1'", [StdioCase("", "")]
    )
    (result,) = sandbox.run("import math, os\nprint(math.pi > 3, 'X' in os.environ)", [StdioCase("", "True False")])
    assert result.outcome is CaseOutcome.PASSED


# Own memory, page by page from where objects and buffers lie, for what looks like an answer. The arguments are put
# together at run time, so that they prove that the search finds what is there.
_SEARCH = r"""
import ctypes, os, re

PAGE, GAP, FAR = 4096, 512, 32 << 20
libc = ctypes.CDLL(None)
out, into = os.pipe()

def page(address):  # A system call tells what is mapped, where a read would crash.
    return os.read(out, PAGE) if libc.write(into, ctypes.c_void_p(address), PAGE) == PAGE else None

def around(address):
    for step in (PAGE, -PAGE):
        at, unmapped = address & -PAGE, 0
        while unmapped < GAP and abs(at - address) < FAR:
            found = page(at)
            unmapped = 0 if found else unmapped + 1
            if found:
                yield found
            at += step

def f(head, tail):
    kept, buffer = head + tail, bytes(2000)
    pattern = re.compile(b"answer" + rb"-(?:[0-9a-f]{2}){16}|" + head.encode() + b"[f][o]r")
    found = set()
    for address in (id(kept), id(buffer)):
        for content in around(address):
            found |= set(pattern.findall(content))
    return sorted(text.decode() for text in found)
"""
