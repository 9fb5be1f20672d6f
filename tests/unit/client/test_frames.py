"""What a job wrote, as data frames."""

import sys
from pathlib import Path

import pytest

from longshore_client.errors import ClientError
from longshore_client.frames import metrics_by_step, metrics_frame


def test_a_damaged_line_is_named_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"ste\n')
    with pytest.raises(ClientError, match=r"^Line 2 of .*metrics\.jsonl is damaged"):
        metrics_by_step(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("package", ["pandas", "pyarrow"])
def test_a_package_that_is_not_installed_is_named_with_the_fix(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metrics.jsonl").touch()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ClientError, match=f"and {package} is not installed") as caught:
        metrics_frame(tmp_path / "metrics.jsonl")
    assert caught.value.fix == "Run `pip install pandas pyarrow`."
