"""The engine without a model takes its vocabulary from one."""

import json
from pathlib import Path
from typing import Any

import pytest

from longshore_runtime.backends.fake_engine import NO_TOKEN, FakeEngineOptions


@pytest.mark.parametrize(
    ("end", "eos_id"), [({"eos_token_id": 7}, 7), ({"eos_token_id": [8, 9]}, 8), ({}, NO_TOKEN)], ids=str
)
def test_the_end_token_is_that_of_the_model(end: dict[str, Any], eos_id: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 50, **end}))
    options = FakeEngineOptions.for_model(tmp_path, step_s=0.5)
    assert (options.vocab_size, options.eos_id, options.step_s) == (50, eos_id, 0.5)
