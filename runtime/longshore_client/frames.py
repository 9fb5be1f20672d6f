"""Tables of a job as pandas data frames. pandas is imported only when one is requested."""

import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from longshore_client.errors import ClientError

if TYPE_CHECKING:
    import pandas


def metrics_frame(path: Path) -> "pandas.DataFrame":
    """Return a row for each step of a `metrics.jsonl`, by its number; a metric that a step lacks is NaN.

    A step has a line of its own for its evaluation, and step 0 is the one before training. The coordinator may be
    writing: a last line without its end is left out.
    """
    steps = metrics_by_step(path)
    return _pandas().DataFrame(steps.values(), columns=None if steps else ["step"]).set_index("step")


def metrics_by_step(path: Path) -> dict[int, dict[str, float]]:
    """Return the same without pandas."""
    *lines, _ = path.read_text(encoding="utf-8").split("\n")  # A text in JSON may hold U+2028 and other ends of lines.
    steps: dict[int, dict[str, float]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ClientError(f"Line {number} of {path} is damaged ({error}).", "Remove that line.") from error
        steps.setdefault(row["step"], {}).update(row)
    return steps


def samples_frame(path: Path) -> "pandas.DataFrame":
    """Return a row for each response of a Parquet file of samples."""
    return _pandas().read_parquet(path)


def _pandas() -> ModuleType:
    try:
        import pandas
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ClientError(
            f"Data frames need pandas and pyarrow, and {error.name} is not installed.",
            "Run `pip install pandas pyarrow`.",
        ) from error
    assert isinstance(pandas, ModuleType)
    return pandas
