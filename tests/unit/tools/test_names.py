"""Names of tests can be read in one line of a report."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_names_of_tests_have_at_most_80_characters() -> None:
    files = [path for tests in ("tests", "devcluster/tests") for path in ROOT.glob(f"{tests}/**/*.py")]
    found = [name for path in files for name in re.findall(r"\bdef (test_\w+)", path.read_text(encoding="utf-8"))]
    assert "test_names_of_tests_have_at_most_80_characters" in found
    assert [name for name in found if len(name) > 80] == []
