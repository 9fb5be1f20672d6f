"""Programs that want out: each is contained, earns nothing, harms no neighbour, and leaves nothing behind."""

import pytest

from longshore_runtime.sandbox.cases import FunctionCase, Outcome, StdioCase
from longshore_runtime.sandbox.sandbox import Sandbox
from tests.contract.sandbox.attacks import ATTACKS, DAEMONS, ENDLESS, Attack
from tests.contract.sandbox.world import World, survivors


@pytest.mark.parametrize("attack", [*ATTACKS, *DAEMONS, *ENDLESS], ids=str)
def test_an_attack_is_contained_and_the_next_sample_runs_as_ever(
    sandbox: Sandbox, targets: World, attack: Attack
) -> None:
    (result,) = sandbox.run(attack.program(targets.names), [StdioCase("", "contained")], timeouts_s=[attack.wall_s])
    assert result.outcome in attack.contained, result
    assert targets.is_unharmed()
    assert survivors() == []
    (after,) = sandbox.run("print(sum(map(int, input().split())))", [StdioCase("1 2", "3")])
    assert after.outcome is Outcome.PASSED


@pytest.mark.parametrize(
    "program",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "raise SystemExit",
        "pass",
        "import os; os.close(1); os._exit(0)",
        "import sys; sys.stdout = None",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import ctypes; ctypes.string_at(0)",
    ],
)
def test_an_early_end_without_an_answer_earns_nothing(sandbox: Sandbox, program: str) -> None:
    results = sandbox.run(f"def f(): ...\n{program}", [StdioCase("", "42"), FunctionCase("f", [], 42)])
    assert all(result.outcome in (Outcome.FAILED, Outcome.ERROR) for result in results), results


@pytest.mark.parametrize(
    "body",
    [
        # Values that equal everything, as objects.
        "class Yes(int):\n  def __eq__(self, other): return True\n  __hash__ = None\ndef f(): return Yes(1)",
        "class Yes(str):\n  def __eq__(self, other): return True\n  __hash__ = None\ndef f(): return Yes('')",
        "class Yes(list):\n  def __eq__(self, other): return True\n  __len__ = lambda self: 1\ndef f(): return Yes()",
        "class Yes(float):\n  __repr__ = lambda self: 'NaN'\ndef f(): return Yes('nan')",
        "def f(): return float('nan')",
        "def f(): return float('inf')",
        # Tools of the harness, replaced.
        "import json\njson.dumps = lambda value: 'true'\ndef f(): return 1",
        "import json\njson.loads = lambda text: True\ndef f(): return 1",
        "import builtins\nbuiltins.all = builtins.bool = lambda *_: True\ndef f(): return 1",
        # Several answers, and reports of success, on everything that is open.
        "import os\ndef f():\n  for n in range(64):\n    try: os.write(n, b'1 2 3')\n    except OSError: pass\n"
        "  os._exit(0)",
        "import json, os\ndef f():\n  for n in range(64):\n    try:\n      os.write(n, json.dumps({'exit_status': 0, "
        "'wall_s': 0, 'cpu_s': 0, 'timed_out': False, 'outcome': 'passed'}).encode())\n    except OSError: pass\n"
        "  os._exit(0)",
        "def f():\n  print('passed'); return {'outcome': 'passed'}",
        # Values that strain who compares them.
        "import os\ndef f():\n  os.write(3, b'[' * 50000); os._exit(0)",
        "import os\ndef f():\n  os.write(3, b'9' * 50000); os._exit(0)",
        "import os\ndef f():\n  os.write(3, b'\\xff\\x00'); os._exit(0)",
    ],
)
def test_a_forged_value_earns_nothing(sandbox: Sandbox, body: str) -> None:
    (result,) = sandbox.run(body, [FunctionCase("f", [], "c0ffee")])
    assert result.outcome in (Outcome.FAILED, Outcome.ERROR), result


def test_the_expected_answer_is_nowhere_in_the_sandbox(sandbox: Sandbox) -> None:
    (result,) = sandbox.run(_SEARCH, [FunctionCase("f", ["asked-", "for"], "answer-" + "3b" * 16)])
    assert result.detail == "returned ['asked-for']"


def test_nothing_of_a_sample_is_in_the_memory_of_the_next(sandbox: Sandbox) -> None:
    sandbox.run("answer = 'answer-' + '4c' * 16\nkeep = [answer] * 10\nprint(answer)", [StdioCase("answer-4c4c", "")])
    (result,) = sandbox.run(_SEARCH, [FunctionCase("f", ["asked-", "for"], None)])
    assert result.detail == "returned ['asked-for']"


def test_that_search_finds_what_is_there(sandbox: Sandbox) -> None:
    (result,) = sandbox.run(f"own = 'answer-' + '5d' * 16\n{_SEARCH}", [FunctionCase("f", ["asked-", "for"], None)])
    assert result.detail == f"returned {['answer-' + '5d' * 16, 'asked-for']}"


def test_what_a_sample_changes_is_gone_for_the_next(sandbox: Sandbox) -> None:
    sandbox.run(
        "import builtins, math, os\nbuiltins.print = None\nmath.pi = 3\nos.environ['X'] = '1'", [StdioCase("", "")]
    )
    (result,) = sandbox.run("import math, os\nprint(math.pi > 3, 'X' in os.environ)", [StdioCase("", "True False")])
    assert result.outcome is Outcome.PASSED


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
