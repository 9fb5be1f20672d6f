"""Interpreters that keep their state between calls: one that is attacked, exhausted or ended takes nothing with it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import psutil
import pytest

from longshore_runtime.sandbox.cases import CaseOutcome
from longshore_runtime.sandbox.interpreter import MAX_OUTPUT, Interpreter, InterpreterLost
from longshore_runtime.sandbox.layers import Layer
from longshore_runtime.sandbox.sandbox import Sandbox
from tests.contract.sandbox.attacks import ATTACKS, DAEMONS, ENDLESS, Attack
from tests.contract.sandbox.conftest import FULL, WITHOUT_NAMESPACES, need
from tests.contract.sandbox.world import LIMITS, World, survivors, zygotes

PATIENT_S: Final = 60.0
SHORT_S: Final = 0.4


@pytest.fixture(scope="module", params=[FULL, WITHOUT_NAMESPACES], ids=["full", "without namespaces"])
def shared(request: pytest.FixtureRequest, available: frozenset[Layer]) -> Iterator[Sandbox]:
    """A sandbox of which all interpreters are forked."""
    need(request.param, available)
    limits = replace(LIMITS, cpu_s=PATIENT_S)
    with Sandbox(request.param | (available & {Layer.USER}), limits, is_shared=True) as sandbox:
        yield sandbox
    assert survivors() == []


@contextmanager
def started(sandbox: Sandbox) -> Iterator[Interpreter]:
    interpreter = sandbox.start_interpreter()
    try:
        yield interpreter
    finally:
        interpreter.close()


@pytest.fixture
def interpreter(shared: Sandbox) -> Iterator[Interpreter]:
    with started(shared) as interpreter:
        yield interpreter


def said(interpreter: Interpreter, code: str) -> str:
    """What a call says that does not end the interpreter."""
    result = interpreter.call(code, PATIENT_S)
    assert result.end is None, result
    return result.text


def end(interpreter: Interpreter, code: str, limit_s: float = PATIENT_S) -> str:
    """Why a call ends the interpreter."""
    result = interpreter.call(code, limit_s)
    assert result.end is not None, result
    return result.end


@pytest.mark.parametrize("attack", [*ATTACKS, *DAEMONS, *ENDLESS], ids=str)
def test_attack_is_contained_and_another_interpreter_keeps_its_state(
    shared: Sandbox, targets: World, attack: Attack
) -> None:
    with started(shared) as neighbour:
        said(neighbour, "kept = 42")
        with started(shared) as attacked:
            result = attacked.call(attack.program(targets.names), attack.wall_s)
        assert "ESCAPED" not in result.text
        if CaseOutcome.ERROR not in attack.contained:
            assert result.end is not None or "contained" in result.text
        assert targets.is_unharmed()
        assert said(neighbour, "kept") == "42\n"
    assert survivors() == []


def test_names_and_imports_stay_between_calls(interpreter: Interpreter) -> None:
    assert said(interpreter, "import math\ndef area(r):\n    return math.pi * r * r") == ""
    assert said(interpreter, "print('area:')\nround(area(2), 2)") == "area:\n12.57\n"
    assert said(interpreter, "_ * 2") == "25.14\n"
    assert said(interpreter, "None") == ""


def test_error_is_shown_with_the_lines_of_earlier_calls_and_state_stays(interpreter: Interpreter) -> None:
    said(interpreter, "kept = 1\ndef divide(a):\n    return a / 0")
    text = said(interpreter, "print('before')\ndivide(3)")
    assert text.startswith('before\nTraceback (most recent call last):\n  File "<call 2>", line 2, in <module>\n')
    assert "return a / 0" in text
    assert "longshore" not in text
    assert text.endswith("ZeroDivisionError: division by zero\n")
    assert said(interpreter, "kept +").endswith("SyntaxError: invalid syntax\n")
    assert said(interpreter, "kept") == "1\n"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("input()", "EOFError: EOF when reading a line\n"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt\n"),
        ("print('\\ud800')", "surrogates not allowed\n"),
        ("import sys; sys.stdout = None; 1 / 0", "ZeroDivisionError: division by zero\n"),
        ("import sys; sys.stdout = sys.stderr = 3", "AttributeError: 'int' object has no attribute 'flush'\n"),
        ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E", "E: <exception str() failed>\n"),
        ("(" * 1000 + ")" * 1000, "SyntaxError: too many nested parentheses\n"),
        ("0" * 5 + "\0", "source code string cannot contain null bytes\n"),
    ],
    ids=lambda value: value[:30],
)
def test_odd_code_is_answered_with_its_error(interpreter: Interpreter, code: str, error: str) -> None:
    assert said(interpreter, code).endswith(error)
    assert said(interpreter, "import sys; sys.stdout = sys.__stdout__; sys.stderr = sys.__stderr__; print(1)") == "1\n"


def test_lone_surrogate_in_the_code_is_no_end(interpreter: Interpreter) -> None:
    assert said(interpreter, "'\ud800'") == "'?'\n"


def test_long_output_lacks_its_middle(interpreter: Interpreter) -> None:
    text = said(interpreter, "print('a' * 30_000); print('z' * 9)")
    assert text.startswith("aaa")
    assert text.endswith("zzzzzzzzz\n")
    assert "\n[... 20,011 characters are cut here ...]\n" in text
    assert len(text) < MAX_OUTPUT + 100


def test_output_that_bypasses_python_is_kept_in_order(interpreter: Interpreter) -> None:
    text = said(interpreter, "import os, sys\nkept = os.write(1, b'1\\xff ')\nprint('2', file=sys.stderr)\n")
    assert text == "1\N{REPLACEMENT CHARACTER} 2\n"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print(1); exit()", "it exited with status 0"),
        ("raise SystemExit(3)", "it exited with status 3"),
        ("import os; os._exit(4)", "it exited with status 4"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "it was killed by signal 9 (Killed)"),
        ("import ctypes; ctypes.string_at(0)", "it was killed by signal 11 (Segmentation fault)"),
        ("while True: print('x' * 1000)", "a call wrote more than 64 KiB"),
        ("import os\nos.closerange(0, 100)\nos.abort()", "it was killed by signal 6 (Aborted)"),
    ],
)
def test_code_that_ends_or_floods_ends_the_interpreter_with_a_reason(
    interpreter: Interpreter, code: str, reason: str
) -> None:
    assert end(interpreter, code) == reason


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(100)",
        "import os; os.kill(os.getpid(), 19)",
        "import os, time\nos.closerange(0, 100)\ntime.sleep(100)",
        "import time\nwhile True:\n    try: time.sleep(100)\n    except BaseException: pass",
        "import time\nwhile True:\n    print(end='.', flush=True); time.sleep(0.001)",
    ],
)
def test_call_that_does_not_end_is_ended_at_its_limit(interpreter: Interpreter, code: str) -> None:
    assert end(interpreter, code, SHORT_S) == "a call took longer than 0.4 s"


FORGED: Final = """
import os, struct
for descriptor in range(3, 64):
    try: os.write(descriptor, {answer})
    except OSError: pass
"""


@pytest.mark.parametrize("answer", ["b'x'", "bytes(100_000)", "struct.pack('=Q', 7)", "struct.pack('=QQ', 1, 2)"])
def test_what_is_no_answer_on_the_channel_ends_the_interpreter(interpreter: Interpreter, answer: str) -> None:
    assert end(interpreter, FORGED.format(answer=answer)) == "it wrote to a descriptor that it must not use"


def test_forged_answer_is_found_at_the_next_call(interpreter: Interpreter) -> None:
    code = FORGED.format(answer="struct.pack('=Q', 1)")
    result = interpreter.call(code, PATIENT_S)
    reason = result.end or interpreter.call("1", PATIENT_S).end
    assert reason == "it wrote to a descriptor that it must not use"


THIEF: Final = """
import os, threading
def take(descriptor):
    while True: os.read(descriptor, 1)
for descriptor in range(3, 8):
    threading.Thread(target=take, args=(descriptor,), daemon=True).start()
"""


def test_code_that_takes_its_next_call_away_is_ended(interpreter: Interpreter) -> None:
    result = interpreter.call(THIEF, SHORT_S)
    while result.end is None:  # Whoever reads first has it.
        result = interpreter.call("1", SHORT_S)


def test_fork_of_the_code_does_not_answer_for_it(shared: Sandbox, interpreter: Interpreter) -> None:
    if Layer.NAMESPACES not in shared.layers:
        assert "PermissionError" in said(interpreter, "import os; os.fork()")
        return
    assert said(interpreter, "import os\nif os.fork(): os.wait(); print('parent')") == "parent\n"
    assert said(interpreter, "1") == "1\n"


def test_memory_beyond_the_limit_is_an_error_and_no_end(interpreter: Interpreter) -> None:
    assert said(interpreter, "kept = 1; bytearray(1 << 30)").endswith("MemoryError\n")
    assert said(interpreter, "kept") == "1\n"


COUNTING: Final = """
import threading
count = 0
def work():
    global count
    while True: count += 1
threading.Thread(target=work, daemon=True).start()
"""


def test_nothing_runs_between_calls(shared: Sandbox) -> None:
    (zygote,) = zygotes()
    before = {*zygote.children(recursive=True)}
    with started(shared) as interpreter:
        said(interpreter, COUNTING)
        begun = {*zygote.children(recursive=True)} - before
        deadline_s = time.monotonic() + PATIENT_S
        while not any(one.status() == psutil.STATUS_STOPPED for one in begun):
            assert time.monotonic() < deadline_s
        counted = [int(said(interpreter, "first = count\nwhile count == first: pass\ncount")) for _ in range(2)]
        assert counted[1] > counted[0] > 0, "it runs during calls"


def test_interpreters_of_forks_come_from_one_zygote(shared: Sandbox) -> None:
    shared.require([])
    (zygote,) = zygotes()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            interpreter = shared.start_interpreter()
            found = interpreter.call("kept = 7", PATIENT_S).end is None
            status = 0 if found and interpreter.call("kept", PATIENT_S).text == "7\n" else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert zygotes() == {zygote}
    assert survivors() == []


def test_dead_sandbox_is_no_answer_and_the_next_interpreter_has_another(available: frozenset[Layer]) -> None:
    need(WITHOUT_NAMESPACES, available)
    before = zygotes()
    with Sandbox(WITHOUT_NAMESPACES, LIMITS, is_shared=True) as sandbox:
        interpreter = sandbox.start_interpreter()
        said(interpreter, "1")
        (zygote,) = zygotes() - before
        descendants = zygote.children(recursive=True)
        zygote.kill()
        psutil.wait_procs(descendants, timeout=PATIENT_S)
        with pytest.raises(InterpreterLost, match="the sandbox of an interpreter has failed: its keeper ended"):
            interpreter.call("1", PATIENT_S)
        with started(sandbox) as another:
            assert said(another, "2") == "2\n"
