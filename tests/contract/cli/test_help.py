"""What the command line imports before it knows what it is asked for."""

import subprocess
import sys

HELP = """
import sys
from longshore_cli.main import app
app(["--help"], standalone_mode=False)
needed_by_some = {"aiohttp", "asyncio", "cel_expr_python", "longshore_kube", "matplotlib", "pydantic", "yaml"}
print(*needed_by_some & sys.modules.keys())
"""


def test_help_comes_without_what_only_some_commands_need() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    *shown, imported = done.stdout.splitlines()
    assert any("Simulate a job under every strategy" in line for line in shown)
    assert imported == ""
