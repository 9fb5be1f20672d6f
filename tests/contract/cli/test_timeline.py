"""Pictures of `longshore simulate`; the first on a machine asks a program for the fonts that there are."""

from pathlib import Path
from xml.etree import ElementTree

from tests.unit.cli.simulated import manifest, simulated
from tests.unit.cli.test_simulate import STEPS


def test_the_timeline_is_a_picture_of_every_strategy_on_the_first_number_of_gpus(tmp_path: Path) -> None:
    picture = tmp_path / "timeline.svg"
    options = ("--strategies", "TailBatching", "--gpus", "4,8", *STEPS, "--timeline", picture)
    shown = simulated(manifest(tmp_path), *options)
    assert "The timeline is in" in shown.stdout
    root = ElementTree.fromstring(picture.read_text())
    assert root.tag.endswith("svg")
    first = picture.read_bytes()
    simulated(manifest(tmp_path), *options)
    assert picture.read_bytes() == first
