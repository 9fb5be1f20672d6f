"""What the checks found: a line for each, and a line for each mistake."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

import typer
from rich.console import Console

from longshore.checks.result import CheckOutcome, CheckResult
from longshore_cli import format as fmt
from longshore_client.plain import plain

_MOST_SHOWN: Final = 20
"""Mistakes of one check."""
_ROW: Final = re.compile(r", (line|row) \d+")
"""Place of a row in its file."""
_SIGNS: Final = {
    CheckOutcome.PASSED: ("✓", "green"),
    CheckOutcome.FAILED: ("✗", "bold red"),
    CheckOutcome.NOT_CHECKED: ("–", "dim"),
}


def show(results: Sequence[CheckResult], *, as_json: bool) -> None:
    """Print them for people, or for programs."""
    if as_json:
        typer.echo(_as_json(results))
        return
    console = Console(highlight=False)
    width = max(len(result.name) for result in results)
    for result in results:
        _show(result, width, console)


def _show(result: CheckResult, width: int, console: Console) -> None:
    sign, style = _SIGNS[result.outcome]
    text = fmt.count(len(result.mistakes), "mistake") if result.mistakes else plain(result.detail)
    if result.outcome is CheckOutcome.NOT_CHECKED:
        text = f"not checked: {text}"
    console.print(sign, style=style, end=" ")
    console.print(f"{result.name.value:{width}}  {text}", markup=False, soft_wrap=True)
    mistakes = list(_once(result.mistakes))
    for mistake in mistakes[:_MOST_SHOWN]:
        console.print(f"  {plain(mistake)}", style="red", markup=False, soft_wrap=True)
    if (more := len(mistakes) - _MOST_SHOWN) > 0:
        console.print(f"  and {fmt.count(more, 'mistake')} more", style="red")


def _once(mistakes: Sequence[str]) -> Iterator[str]:
    """Yield each mistake once; one that many rows of a file have is shown for the first of them."""
    alike: dict[str, list[str]] = {}
    for mistake in mistakes:
        alike.setdefault(_ROW.sub("", mistake), []).append(mistake)
    for first, *others in alike.values():
        yield first + (f" (so have {fmt.count(len(others), 'other row')})" if others else "")


def _as_json(results: Sequence[CheckResult]) -> str:
    checks = [
        {"name": one.name, "outcome": one.outcome, "detail": one.detail, "mistakes": list(one.mistakes)}
        for one in results
    ]
    return json.dumps(
        {
            "checks": checks,
            "mistakes": [mistake for one in results for mistake in one.mistakes],
            "notChecked": [f"{one.name}: {one.detail}" for one in results if one.outcome is CheckOutcome.NOT_CHECKED],
        },
        indent=2,
    )
