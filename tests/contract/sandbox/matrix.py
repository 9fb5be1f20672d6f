"""Which layer stops which attack: prints the table of docs/explanation/sandbox.md.

`python -m tests.contract.sandbox.matrix` runs every attack under each set of layers; `--write` puts the table into the
page. Attacks are bounded by themselves, so that sets which stop nothing harm nobody.
"""

import argparse
from collections.abc import Sequence
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


def found(tried: Sequence[Row], available: frozenset[Layer], targets: World) -> str:
    """Return Markdown that says which layers hold each attack alone, and without which one it succeeds."""
    layers = [layer for layer in Layer if layer in available]
    bare, complete = held(frozenset(), tried, targets), held(available, tried, targets)
    alone = {layer: held(frozenset({layer}), tried, targets) for layer in layers}
    without = {layer: held(available - {layer}, tried, targets) for layer in layers}
    lines = ["| attack | held by any of | held only with |", "|---|---|---|"]
    always: dict[str, list[str]] = {}
    alike: dict[tuple[str, str, str], list[str]] = {}
    for number, row in enumerate(tried):
        family, _, name = row.name.partition(": ")
        if all(column[number] for column in (bare, complete, *alone.values(), *without.values())):
            always.setdefault(family, []).append(name)
            continue
        by = ", ".join(layer.value for layer in layers if alone[layer][number])
        needed = ", ".join(layer.value for layer in layers if not without[layer][number])
        alike.setdefault((family, by, needed if complete[number] else "**out**"), []).append(name)
    lines += [f"| {family}: {', '.join(names)} | {by} | {needed} |" for (family, by, needed), names in alike.items()]
    lines += ["", "Held even without layers:", ""]
    return "\n".join([*lines, *(f"- {family}: {', '.join(names)}" for family, names in always.items())])


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    write = parser.parse_args().write
    with world() as targets:
        text = found(rows(targets), detect(default_python()).available, targets)
    print(text)
    if write:
        page = _PAGE.read_text(encoding="utf-8")
        before, after = page.partition(_BEGIN)[0], page.partition(_END)[2]
        _PAGE.write_text(f"{before}{_BEGIN}\n{text}\n\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
