"""Ordinary programs: what they get, how they are judged, timed and cut off."""

import contextlib
import dataclasses
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
import pytest

from longshore_runtime.sandbox.cases import CaseOutcome, FunctionCase, StdioCase, TestCase, parse_case
from longshore_runtime.sandbox.confinement import Confinement, Ground, process_limit
from longshore_runtime.sandbox.layers import Layer
from longshore_runtime.sandbox.sandbox import Sandbox
from longshore_runtime.sandbox.worker import SandboxWorker, ZygoteDied, default_python
from tests.contract.sandbox.conftest import WITHOUT_NAMESPACES, need
from tests.contract.sandbox.world import LIMITS, survivors, zygotes

_ADD = "a, b = map(int, input().split())\nprint(a + b)"


def _outcome(sandbox: Sandbox, program: str, expected: str = "", stdin: str = "") -> tuple[CaseOutcome, str]:
    (result,) = sandbox.run(program, [StdioCase(stdin, expected)])
    return result.outcome, result.detail


def test_a_program_is_judged_by_what_it_prints(sandbox: Sandbox) -> None:
    results = sandbox.run(_ADD, [StdioCase("1 2\n", "3\n"), StdioCase("2 2\n", "5\n"), StdioCase("", "")])
    assert [result.outcome for result in results] == [CaseOutcome.PASSED, CaseOutcome.FAILED, CaseOutcome.ERROR]
    assert [result.detail for result in results] == ["", "printed '4\\n'", "EOFError: EOF when reading a line"]


def test_a_function_is_judged_by_what_it_returns(sandbox: Sandbox) -> None:
    program = "class Solution:\n  def add(self, a, b): return a, b\n\ndef add(a, b=3): return {'sum': a + b}"
    results = sandbox.run(
        program,
        [
            FunctionCase("add", [1, 2], {"sum": 3}),
            FunctionCase("add", [1], {"sum": 4}),
            FunctionCase("Solution.add", [1, "x"], [1, "x"]),
            FunctionCase("add", [1, 2], {"sum": True}),
            FunctionCase("absent", [], None),
            FunctionCase("add", [], None),
        ],
    )
    assert [result.outcome for result in results] == [CaseOutcome.PASSED] * 3 + [CaseOutcome.FAILED] + [
        CaseOutcome.ERROR
    ] * 2


def test_a_function_may_be_a_method_of_a_class_solution(sandbox: Sandbox) -> None:
    method = "class Solution:\n  def add(self, a, b): return self.shift(a + b)\n  def shift(self, c): return c + {}\n"
    function = "def add(a, b): return a + b\n"
    test = parse_case({"entry": "add", "test": "assert add(1, 2) == 3"}, "row 7")
    for program, outcome in (
        (method.format(0), CaseOutcome.PASSED),
        (method.format(1), CaseOutcome.FAILED),
        (method.format(1) + function, CaseOutcome.PASSED),
        ("Solution = 3", CaseOutcome.ERROR),
        ("class Solution: ...", CaseOutcome.ERROR),
    ):
        results = sandbox.run(program, [FunctionCase("add", [1, 2], 3), test])
        assert [result.outcome for result in results] == [outcome] * 2, (program, results)


def test_the_names_of_typing_are_there_for_functions_unless_the_program_defines_them(sandbox: Sandbox) -> None:
    program = "def f(values: List[int], start: Optional[int] = None) -> Dict[str, int]: return {'sum': sum(values)}"
    own = "class List(list): ...\ndef f(values): return [List.__module__, List(values)]"
    results = sandbox.run(program, [FunctionCase("f", [[1, 2]], {"sum": 3})])
    results += sandbox.run(own, [FunctionCase("f", [[1]], ["program", [1]])])
    assert [result.outcome for result in results] == [CaseOutcome.PASSED] * 2, results
    for name in ("cast", "List", "exit"):
        (result,) = sandbox.run("def f(): ...", [FunctionCase(name, [1, 1], 1)])
        assert result.detail == f"AttributeError: module 'program' has no attribute '{name}'"
    assert _outcome(sandbox, "List")[1] == "NameError: name 'List' is not defined"


def test_a_script_runs_as_main_and_a_module_of_functions_does_not(sandbox: Sandbox) -> None:
    program = "def f(): return __name__\nif __name__ == '__main__': print('main')"
    results = sandbox.run(program, [StdioCase("", "main"), FunctionCase("f", [], "program")])
    assert all(result.outcome is CaseOutcome.PASSED for result in results), results


def test_cases_after_a_failure_can_be_left_out(sandbox: Sandbox) -> None:
    cases = [StdioCase("1 2", "3"), StdioCase("1 2", "4"), StdioCase("1 2", "3")]
    assert len(sandbox.run(_ADD, cases)) == 3
    stopped = sandbox.run(_ADD, cases, stop_at={CaseOutcome.FAILED})
    assert [result.outcome for result in stopped] == [CaseOutcome.PASSED, CaseOutcome.FAILED]


def test_each_case_has_its_own_time_limit(sandbox: Sandbox) -> None:
    program = "import time\ntime.sleep(float(input()))"
    results = sandbox.run(program, [StdioCase("60", ""), StdioCase("0.2", "")], timeouts_s=[0.1, LIMITS.wall_s])
    assert [result.outcome for result in results] == [CaseOutcome.TIMED_OUT, CaseOutcome.PASSED]
    assert results[0].wall_s >= 0.1
    assert results[1].wall_s >= 0.2


def test_cpu_time_is_distinguished_from_waiting(sandbox: Sandbox) -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    slept, worked = (sandbox.run(program, [StdioCase("", "")])[0] for program in ("import time; time.sleep(0.3)", busy))
    assert slept.cpu_s < 0.3 <= slept.wall_s
    assert worked.cpu_s >= 0.25


def test_memory_is_counted_of_all_processes_together(available: frozenset[Layer]) -> None:
    need({Layer.NAMESPACES}, available)  # Without them programs have no children.
    # All hold their memory at the same time, however slowly they get there. What is cut off does not end before.
    program = (
        "import mmap, os, time\nthere, number = mmap.mmap(-1, 4), 0\n"
        "for _ in range({0}): number = 2 * number + (os.fork() == 0)\n"
        "kept = bytearray(b'x') * (45 << 20)\nthere[number] = 1\n"
        "while sum(there[:]) < 1 << {0}: time.sleep(0.01)\ntime.sleep({1})"
    )
    with Sandbox(available, LIMITS) as sandbox:
        few, many = (sandbox.run(program.format(*one), [StdioCase("", "")])[0] for one in ((1, 1.0), (2, 600.0)))
    assert few.outcome is CaseOutcome.PASSED, few
    assert (many.outcome, many.detail) == (CaseOutcome.LIMIT, "used too much memory"), many
    assert many.wall_s < LIMITS.wall_s


def test_memory_is_counted_while_the_keeper_answers_as_fast_as_it_can(available: frozenset[Layer]) -> None:
    layers = WITHOUT_NAMESPACES - {Layer.RLIMITS}  # The address space has no limit.
    need(layers, available)
    program = (
        "import os, threading\ndef ask():\n  while True: os.stat('/')\n"
        "for _ in range(4): threading.Thread(target=ask, daemon=True).start()\n"
        "kept = [bytearray(b'x') * (1 << 20) for _ in range(192)]\nask()"
    )
    with Sandbox(layers, LIMITS) as sandbox:
        assert _outcome(sandbox, program) == (CaseOutcome.LIMIT, "used too much memory")


def test_sockets_count_as_the_memory_that_the_kernel_may_keep_for_them(available: frozenset[Layer]) -> None:
    program = "import socket, time\nkept = [socket.socketpair() for _ in range({})]\ntime.sleep({})"
    with Sandbox(available - {Layer.CGROUP}, dataclasses.replace(LIMITS, memory_bytes=8 << 20)) as sandbox:
        few, many = (sandbox.run(program.format(*one), [StdioCase("", "")])[0] for one in ((4, 0.3), (28, 600.0)))
    assert few.outcome is CaseOutcome.PASSED, few
    assert (many.outcome, many.detail) == (CaseOutcome.LIMIT, "used too much memory"), many


def test_only_threads_of_the_program_count_however_many_its_user_has_elsewhere(
    available: frozenset[Layer],
) -> None:
    program = (
        "import threading, time\nthreading.stack_size(1 << 16)\n"
        "for _ in range({}): threading.Thread(target=time.sleep, args=({},)).start()\nprint(True)"
    )
    layers = available - {Layer.NAMESPACES, Layer.USER, Layer.CGROUP}
    with Sandbox(layers, LIMITS) as sandbox, _threads(4 * LIMITS.num_processes):
        few, many = (sandbox.run(program.format(*one), [StdioCase("", "True")])[0] for one in ((6, 0.3), (24, 600.0)))
    assert few.outcome is CaseOutcome.PASSED, few
    assert (many.outcome, many.detail) == (CaseOutcome.LIMIT, "started too many processes or threads"), many


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    """So many threads of this process, for as long as the context."""
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_the_kernel_bounds_the_user_of_programs_only_where_nothing_else_runs_as_it() -> None:
    """The kernel counts all of a user's processes on the node, of which a container sees its own."""
    for layers, in_user_namespace, is_bounded in (
        ({Layer.RLIMITS}, False, False),
        ({Layer.RLIMITS, Layer.NAMESPACES}, False, False),
        ({Layer.RLIMITS, Layer.USER}, False, True),
        ({Layer.RLIMITS, Layer.USER, Layer.NAMESPACES}, True, True),
    ):
        ground = Ground(Confinement(frozenset(layers), LIMITS, 1000, ()), in_user_namespace, 0, 0, 0, None, None)
        assert (process_limit(ground) < 64) is is_bounded, layers


def test_cpu_time_has_a_limit_of_its_own(available: frozenset[Layer]) -> None:
    ignoring = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    with Sandbox(available, dataclasses.replace(LIMITS, cpu_s=1.0, wall_s=120.0)) as sandbox:
        for program in ("while True: pass", f"{ignoring}while True: pass"):
            (result,) = sandbox.run(program, [StdioCase("", "")])
            assert result.outcome is CaseOutcome.TIMED_OUT
            assert "CPU" in result.detail


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("x = bytearray(1 << 30)", CaseOutcome.LIMIT),
        ("print('x' * (1 << 20))", CaseOutcome.LIMIT),
        ("raise ValueError('no')", CaseOutcome.ERROR),
        ("import sys; sys.exit(3)", CaseOutcome.ERROR),
        ("exit('no')", CaseOutcome.ERROR),
        ("import atexit, os, sys; atexit.register(os.write, 1, b''); sys.exit(3)", CaseOutcome.ERROR),
        ("import sys; sys.stdout.flush = sys.exit; sys.exit(3)", CaseOutcome.ERROR),
        ("(", CaseOutcome.ERROR),
        ("\0", CaseOutcome.ERROR),
        ("def f(): f()\nf()", CaseOutcome.ERROR),
        ("import sys; sys.stdout.buffer.write(b'\\xff')", CaseOutcome.FAILED),
    ],
)
def test_programs_fail_in_ways_that_are_distinguished(sandbox: Sandbox, program: str, outcome: CaseOutcome) -> None:
    assert _outcome(sandbox, program)[0] is outcome


@pytest.mark.parametrize(
    ("program", "case"),
    [
        ("print('x' * {num_bytes})", StdioCase("", "x" * (3 * LIMITS.output_bytes))),
        ("def f(): return 'x' * {num_bytes}", FunctionCase("f", [], "x" * (3 * LIMITS.output_bytes))),
        (
            "def f(): return 'x' * {num_bytes}",
            parse_case({"entry": "f", "test": f"assert f() == 'x' * {3 * LIMITS.output_bytes}"}, "row 7"),
        ),
    ],
    ids=["stdout", "expected", "test"],
)
def test_a_large_answer_has_room_and_more_than_twice_as_much_has_not(
    sandbox: Sandbox, program: str, case: TestCase
) -> None:
    for times, outcome in ((3, CaseOutcome.PASSED), (4, CaseOutcome.FAILED), (7, CaseOutcome.LIMIT)):
        (result,) = sandbox.run(program.format(num_bytes=times * LIMITS.output_bytes), [case])
        assert result.outcome is outcome, (times, result)


def test_a_program_that_is_not_text_is_an_error_of_the_program(sandbox: Sandbox) -> None:
    assert _outcome(sandbox, "print('\ud800')")[0] is CaseOutcome.ERROR


@pytest.mark.parametrize(
    "program",
    [
        "import sys; print(sys.stdin.read() == 'a\\nb\\n')",
        "import asyncio\nasync def go(): return True\nprint(asyncio.run(go()))",
        "import threading\nt = threading.Thread(target=print, args=(True,)); t.start()",
        "import sys; sys.setrecursionlimit(5000); print(True); sys.exit(0)",
        "import random, time, datetime, collections, heapq, bisect, math; print(time.time() > 0)",
        "import atexit; atexit.register(print, True)",
        "import sys; print(True); sys.stdout.close()",
        "import sys; print(True); sys.stdout.close(); sys.exit()",
        "print(True); exit()",
        "print(True); quit(0)",
        "def main():\n  print(True)\n  if input() == 'a': exit(0)\n  print(False)\nmain()",
        "import atexit, sys; atexit.register(print, True); sys.exit()",
        "import atexit, io, os, sys; sys.stdout = kept = io.StringIO(); print(True)\n"
        "atexit.register(lambda: os.write(1, kept.getvalue().encode())); exit()",
        "import sys, threading\nthreading.Timer(0.1, print, (True,)).start(); sys.exit(0)",
        "import sys; sys.stdout.write('True')",
        "import os; os.write(1, b'True')",
        "out = open(1, 'w'); out.write('True')",
        "import os; out = os.fdopen(1, 'wb'); out.write(b'True'); exit()",
        "import sys; sys.stdout.write('True'); out = sys.stdout; del sys.stdout",
        "import socket as s; a, b = s.socketpair(); a.setsockopt(s.SOL_SOCKET, s.SO_SNDBUF, 9); print(a.fileno() > 0)",
        "import os; print(True); print('lost', file=open(os.devnull, 'w'))",
        "import sqlite3, ssl, zoneinfo; print(list(sqlite3.connect(':memory:').execute('select 1')) == [(1,)])",
        "import email.message, xml.dom.minidom; print(xml.dom.minidom.parseString('<a/>').firstChild.tagName == 'a')",
        "import zoneinfo; print(zoneinfo.ZoneInfo('Europe/Berlin').key == 'Europe/Berlin')",
        "import os; print(os.stat(os.__file__).st_size == len(open(os.__file__, 'rb').read()))",
        "import os; print(os.fstat(os.open(os.__file__, 0)) == os.stat(os.__file__) == os.lstat(os.__file__))",
        "import os; print(os.path.isfile(os.__file__) and os.path.isdir('/') and not os.path.exists('/absent'))",
        "import os, pathlib; print(pathlib.Path(os.__file__).resolve(strict=True).samefile(os.__file__))",
        "import os; print(os.access(os.__file__, os.R_OK) and not os.access(os.__file__, os.W_OK))",
        "import glob, json, os; print(len(glob.glob(os.path.dirname(json.__file__) + '/*.py')) > 3)",
        "import json, os; print(all(e.stat().st_mode for e in os.scandir(os.path.dirname(json.__file__))))",
        "import os, json; print([dirs for _, dirs, _ in os.walk(os.path.dirname(json.__file__))] != [])",
        "import inspect, heapq; print('def merge' in inspect.getsource(heapq.merge))",
        "import shutil; print(shutil.which('absent') is None)",
    ],
)
def test_what_programs_use_works(sandbox: Sandbox, program: str) -> None:
    assert _outcome(sandbox, program, "True", "a\nb\n") == (CaseOutcome.PASSED, "")


@pytest.mark.parametrize(
    "program",
    [
        "open('x', 'w').write('1'); print(open('x').read() == '1')",
        "import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', 'print(True)'], text=True))",
        "from multiprocessing import Pool\nwith Pool(2) as pool: print(pool.map(abs, [-1, 2]) == [1, 2])",
    ],
)
def test_with_namespaces_files_and_children_work_too(available: frozenset[Layer], program: str) -> None:
    need({Layer.NAMESPACES}, available)
    with Sandbox(available, LIMITS) as sandbox:
        assert _outcome(sandbox, program, "True") == (CaseOutcome.PASSED, "")


def test_runs_are_alike(sandbox: Sandbox) -> None:
    program = "print([hash(word) for word in 'several words to hash'.split()], list({'a', 'b', 'c', 'd'}))"
    details = {_outcome(sandbox, program) for _ in range(3)}
    assert len(details) == 1


@pytest.fixture
def packages() -> Iterator[str]:
    """A directory with a package, outside of /tmp, which programs have one of their own of."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        Path(directory).chmod(0o755)
        shutil.copytree(Path(__file__).parent / "packages", directory, dirs_exist_ok=True)
        yield directory


def test_packages_are_there_when_asked_for(available: frozenset[Layer], packages: str) -> None:
    program = "import helpful; print(helpful.answer)"
    with Sandbox(available, LIMITS, import_paths=[packages]) as sandbox:
        assert _outcome(sandbox, program, "42") == (CaseOutcome.PASSED, "")
    with Sandbox(available, LIMITS) as sandbox:
        assert _outcome(sandbox, program, "42") == (CaseOutcome.ERROR, "ModuleNotFoundError: No module named 'helpful'")


def test_a_program_with_a_user_of_its_own_reads_only_what_everybody_may(
    available: frozenset[Layer], packages: str
) -> None:
    need({Layer.USER, *WITHOUT_NAMESPACES}, available)
    file = Path(packages, "file")
    file.touch(mode=0o600)
    program = f"try: open({str(file)!r})\nexcept OSError: print('absent')\nelse: print('there')"
    for layers, seen in ((WITHOUT_NAMESPACES, "there"), (WITHOUT_NAMESPACES | {Layer.USER}, "absent")):
        with Sandbox(layers, LIMITS, import_paths=[packages]) as sandbox:
            assert _outcome(sandbox, program, seen) == (CaseOutcome.PASSED, "")


def test_packages_are_there_without_namespaces_too(available: frozenset[Layer], packages: str) -> None:
    need(WITHOUT_NAMESPACES, available)
    Path(packages, "elsewhere.py").symlink_to(__file__)
    program = (
        f"import helpful, os\nlinked = os.path.join({packages!r}, 'elsewhere.py')\n"
        "print(helpful.answer, os.path.lexists(linked), os.path.exists(linked), os.readlink(linked))"
    )
    with Sandbox(WITHOUT_NAMESPACES, LIMITS, import_paths=[packages]) as sandbox:
        assert _outcome(sandbox, program, f"42 True False {__file__}") == (CaseOutcome.PASSED, "")


def test_packages_that_the_own_tmp_would_hide_are_refused() -> None:
    with pytest.raises(ValueError, match="import_paths: '/tmp/packages' lies in /tmp"):
        Sandbox({Layer.SECCOMP}, LIMITS, import_paths=["/tmp/packages"])


def test_a_dead_interpreter_is_started_again(available: frozenset[Layer]) -> None:
    with Sandbox(available, LIMITS) as sandbox:
        others = zygotes()
        assert _outcome(sandbox, "print(1)", "1")[0] is CaseOutcome.PASSED
        (zygote,) = zygotes() - others
        zygote.kill()
        assert _outcome(sandbox, "print(1)", "1")[0] is CaseOutcome.PASSED
        assert not zygote.is_running()


def test_nothing_is_left_when_a_sandbox_is_closed(available: frozenset[Layer]) -> None:
    _alone(_close_a_sandbox, available)


def _close_a_sandbox(layers: frozenset[Layer]) -> None:
    others, descriptors = zygotes(), _descriptors()
    with Sandbox(layers, LIMITS) as sandbox:
        sandbox.run(_ADD, [StdioCase("1 2", "3")] * 5)
        assert len(zygotes() - others) == 1
    assert zygotes() <= others
    assert survivors() == []
    assert _descriptors() == descriptors


def test_nothing_is_left_of_a_run_that_could_not_be_sent() -> None:
    _alone(_fail_to_send)


def _fail_to_send() -> None:
    worker = SandboxWorker(Confinement(frozenset(), LIMITS, os.getuid(), ()), default_python())
    with contextlib.closing(worker):
        os.kill(worker.pid, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(worker.pid)])
        descriptors = _descriptors()
        with pytest.raises(ZygoteDied, match="the sandbox's interpreter has ended"):
            worker.run(b"pass", b"", is_function=False, wall_s=LIMITS.wall_s)
        assert _descriptors() == descriptors


def _alone(check: Callable[..., None], *arguments: object) -> None:
    """Run a check in a process of its own: threads that other tests leave behind open and close files at any time."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as process:
        process.submit(check, *arguments).result()


def _descriptors() -> frozenset[tuple[str, str]]:
    """What is open, by number and file."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add((descriptor.name, str(descriptor.readlink())))
    return frozenset(found)
