"""Pictures and tables of the pages, from the results of benchmarks."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmarks import paired
from benchmarks.report import RESULTS, spreads

DOCS = Path(__file__).parents[3] / "docs"
SEEDS = range(3)


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A copy of the pages, with an empty folder for pictures."""
    import matplotlib

    matplotlib.use("svg")
    shutil.copytree(DOCS / "explanation", tmp_path / "docs/explanation")
    (tmp_path / "docs/assets").mkdir()
    (tmp_path / "results").mkdir()
    return tmp_path


def draw(pages: Path, name: str, result: dict[str, Any]) -> str:
    """Both pages, after a benchmark has this result."""
    from tools import bench_figures

    (pages / "results" / f"{name}.json").write_text(json.dumps(result))
    bench_figures.bench_figures(pages / "results", pages / "docs")
    assert (pages / f"docs/assets/bench-{name}.svg").read_text().startswith("<?xml")
    return "".join((pages / "docs/explanation" / f"{page}.md").read_text() for page in ("benchmarks", "tail-batching"))


def run(variant: str, seed: int, step_s: float, long: float) -> dict[str, Any]:
    points = [
        {"step": 30 * at, "seconds": 30 * at * step_s, "reward": 0.5 + 0.2 * at, "long": at / 2 * long}
        for at in range(3)
    ]
    return {"variant": variant, "seed": seed, "points": points, "step_s": step_s, "gain": 0.4, "call": "", **points[-1]}


def test_learning_has_a_row_for_every_variant_with_its_intervals(pages: Path) -> None:
    runs = [run("Synchronous", seed, 1.0, 0.8) for seed in SEEDS]
    runs += [run("TailBatching", seed, 0.5, 0.7 + 0.01 * seed) for seed in SEEDS]
    table = paired.compared(runs)
    settings = {"seeds": list(SEEDS), "steps": 60}
    text = draw(pages, "learning", {"variants": table, "runs": runs, "settings": settings})
    assert "3 seeds, 60 steps:" in text
    assert "| Synchronous | 0.900 |  |  | 0.800 |  |  | 1.00 |\n" in text
    cells = "0.900 | +0.000 (+0.000 to +0.000) | +0.200 (+0.200 to +0.200) | 0.710 | -0.090 (-0.115 to -0.065)"
    assert f"| TailBatching | {cells} |" in text


def test_one_seed_is_drawn_without_intervals(pages: Path) -> None:
    runs = [run("Synchronous", 0, 1.0, 0.8), run("TailBatching", 0, 0.5, 0.7)]
    table = paired.compared(runs)
    text = draw(pages, "learning", {"variants": table, "runs": runs, "settings": {"seeds": [0], "steps": 60}})
    assert "| TailBatching | 0.900 | +0.000 | +0.200 | 0.700 | -0.100 | +0.300 | 0.50 |" in text


def test_a_table_of_ratios_has_the_baseline_first_and_medians_with_their_spread(pages: Path) -> None:
    names = ("rollout_to_train_end_s", "trainer_waiting_ratio", "first_dispatch_s", "overlap_share", "decode_steps")
    figures = {f"{job}/{name}": [0.5, 0.7, 0.6] for job in ("CGP", "Serial") for name in names}
    ratios = spreads({"CGP/rollout_to_train_end_s": [0.8, 0.9, 0.7]})
    text = draw(pages, "pipeline", {"ratios": ratios, "figures": spreads(figures)})
    one = "0.60 (0.50 to 0.70) | 0.60 s (0.50 s to 0.70 s) | 60 % (50 % to 70 %) | 1 (0 to 1) |"
    assert f"| `Serial` | 1 | {one}\n| `CGP` | 0.80 (0.70 to 0.90) | {one}\n" in text
    assert text.count("<!-- begin pipeline -->") == text.count("<!-- end pipeline -->") == 1


def test_what_was_measured_can_be_drawn(pages: Path) -> None:
    """The files of this checkout still have what the pictures show."""
    from tools import bench_figures

    for path in RESULTS.glob("*.json"):
        shutil.copy(path, pages / "results")
    before = {page.name for page in (pages / "docs/explanation").iterdir()}
    bench_figures.bench_figures(pages / "results", pages / "docs")
    assert {path.stem for path in (pages / "docs/assets").iterdir()} >= {"bench-pipeline", "bench-stream"}
    assert {page.name for page in (pages / "docs/explanation").iterdir()} == before
