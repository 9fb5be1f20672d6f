"""A small manifest to simulate, and the command that does."""

from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml
from typer.testing import CliRunner, Result

from longshore_cli.main import app

Json = dict[str, Any]

_MANIFEST: Final[Json] = {
    "apiVersion": "longshore.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "small"},
    "spec": {
        "model": {"path": "models/qwen", "maxContextTokens": 2048},
        "data": {"path": "data/maths.jsonl"},
        "algorithm": {"steps": 100, "promptsPerStep": 8, "responsesPerPrompt": 4, "maxResponseTokens": 1024},
        "rollout": {"strategy": "Synchronous"},
        "reward": {"functions": [{"name": "maths", "kind": "Maths"}], "workersPerPod": 32},
        "workers": {"replicas": 2, "gpusPerPod": 2},
        "storage": {"claimName": "data"},
    },
}


TOOLS: Final = [{"name": "tools", "kind": "Python", "tools": ["tools:one"], "maxTurns": 6, "callTimeoutSeconds": 60}]
"""Environments, which need `data.chat`."""


def manifest(directory: Path, **changes: Any) -> Path:
    """The small job with fields of its spec replaced: `rollout__strategy="X"` is rollout.strategy."""
    stored = deepcopy(_MANIFEST)
    for name, value in changes.items():
        *sections, field = name.split("__")
        section = stored["spec"]
        for one in sections:
            section = section.setdefault(one, {})
        section[field] = deepcopy(value)
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(stored))
    return path


def run(*arguments: str | Path) -> Result:
    """`longshore simulate` with these arguments."""
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def simulated(*arguments: str | Path, model: str = "Qwen2.5-7B") -> Result:
    """The same, for a known model; it has to succeed."""
    result = run(*arguments, "--model", model)
    assert result.exit_code == 0, result.output
    return result


def refusal(*arguments: str | Path) -> str:
    """The sentence with which it ends, and its fix."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr
