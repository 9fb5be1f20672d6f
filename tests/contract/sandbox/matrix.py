"""Which layer stops which attack: prints the tables of docs/explanation/sandbox.md.

`python -m tests.contract.sandbox.matrix` runs every attack under each set of layers; `--write` puts the tables into the
page. Attacks are bounded by themselves, so that sets which stop nothing harm nobody.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from longshore_runtime.sandbox.cases import CaseOutcome, StdioCase, TestCase
from longshore_runtime.sandbox.detection import detect
from longshore_runtime.sandbox.layers import Layer
from longshore_runtime.sandbox.sandbox import Sandbox, SandboxError
from longshore_runtime.sandbox.worker import default_python
from tests.contract.sandbox.attacks import ATTACKS, DAEMONS, ENDLESS
from tests.contract.sandbox.forgeries import EARLY_END_CASES, EARLY_ENDS, EARNS_NOTHING, FORGED, FORGED_CASES
from tests.contract.sandbox.world import LIMITS, World, survivors, world

_PAGE: Final = Path(__file__).parents[3] / "docs/explanation/sandbox.md"
_BEGIN: Final = "<!-- matrix: python -m tests.contract.sandbox.matrix --write -->\n"
_END: Final = "<!-- end of matrix -->\n"
_HELD: Final = {True: "held", False: "**out**"}

Column = tuple[str, frozenset[Layer]]


def columns(available: frozenset[Layer]) -> tuple[list[Column], list[Column]]:
    """Layers alone, and all but one."""
    layers = [layer for layer in Layer if layer in available]
    alone = [("none", frozenset[Layer]()), *((layer.value, frozenset({layer})) for layer in layers)]
    without = [("all", available), *((f"no {layer.value}", available - {layer}) for layer in layers)]
    return alone, without


@dataclass(frozen=True)
class Row:
    """Programs of one kind; all of them have to be contained."""

    name: str
    programs: Sequence[str]
    cases: Sequence[TestCase]
    contained: frozenset[CaseOutcome]
    wall_s: float = LIMITS.wall_s

    def is_contained(self, sandbox: Sandbox) -> bool:
        """Whether each program ends as it should in each of its test cases."""
        try:
            results = [
                result
                for program in self.programs
                for result in sandbox.run(program, self.cases, timeouts_s=[self.wall_s] * len(self.cases))
            ]
        except SandboxError:
            return False  # It reached its keeper.
        return all(result.outcome in self.contained for result in results)


def rows(targets: World) -> list[Row]:
    """All that is tried."""
    attacks = [
        Row(str(one), [one.program(targets.names)], [StdioCase("", "contained")], one.contained, one.wall_s)
        for one in [*ATTACKS, *DAEMONS, *ENDLESS]
    ]
    return [
        *attacks,
        Row(f"early ends: {len(EARLY_ENDS)} ways", EARLY_ENDS, EARLY_END_CASES, EARNS_NOTHING),
        Row(f"forged answers: {len(FORGED)} ways", FORGED, FORGED_CASES, EARNS_NOTHING),
    ]


def held(layers: frozenset[Layer], tried: Sequence[Row], targets: World) -> list[bool]:
    """Whether each row was contained, harmed no neighbour and left nothing running."""
    results = []
    with Sandbox(layers, LIMITS) as sandbox:
        for row in tried:
            contained = row.is_contained(sandbox)
            unharmed, left = targets.is_unharmed(), survivors()
            results.append(contained and unharmed and not left)
    return results


def table(tried: Sequence[Row], cells: Mapping[str, Sequence[bool]]) -> str:
    """Markdown: a row for each attack, a column for each set of layers."""
    lines = [f"| attack | {' | '.join(cells)} |", f"|---|{'---|' * len(cells)}"]
    for number, row in enumerate(tried):
        lines.append(f"| {row.name} | {' | '.join(_HELD[column[number]] for column in cells.values())} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    write = parser.parse_args().write
    alone, without = columns(detect(default_python()).available)
    with world() as targets:
        tried = rows(targets)
        tables = [table(tried, {name: held(layers, tried, targets) for name, layers in c}) for c in (alone, without)]
    text = f"Each layer alone:\n\n{tables[0]}\nAll layers, and all but one:\n\n{tables[1]}"
    print(text)
    if write:
        page = _PAGE.read_text(encoding="utf-8")
        before, after = page.partition(_BEGIN)[0], page.partition(_END)[2]
        _PAGE.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
