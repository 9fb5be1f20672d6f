"""Programs that want a reward without an answer: they end early, or claim what they have not computed."""

from typing import Final

from longshore_runtime.sandbox.cases import CaseOutcome, FunctionCase, StdioCase

EARNS_NOTHING: Final = frozenset({CaseOutcome.FAILED, CaseOutcome.ERROR})

EARLY_END_CASES: Final = (StdioCase("", "42"), FunctionCase("f", [], 42))
EARLY_ENDS: Final = (
    "def f(): ...\nimport os; os._exit(0)",
    "def f(): ...\nimport sys; sys.exit(0)",
    "def f(): ...\nraise SystemExit",
    "def f(): ...\npass",
    "def f(): ...\nimport os; os.close(1); os._exit(0)",
    "def f(): ...\nimport sys; sys.stdout = None",
    "def f(): ...\nimport os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "def f(): ...\nimport ctypes; ctypes.string_at(0)",
)

FORGED_CASES: Final = (FunctionCase("f", [], "c0ffee"),)
FORGED: Final = (
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
)
