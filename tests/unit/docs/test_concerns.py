"""The reference lists the concerns of `reconcile`, in their order."""

import re
from pathlib import Path
from typing import Final

from longshore_operator.reconcile import CONCERNS

_PAGE: Final = Path(__file__).parents[3] / "docs" / "reference" / "operator.md"


def test_the_table_of_concerns_names_their_modules_in_their_order() -> None:
    listed = re.findall(r"^\| [^|]+ \| `([\w/]+)\.py` \| ", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    modules = [concern.__module__.removeprefix("longshore_operator.").replace(".", "/") for concern in CONCERNS]
    assert listed == modules
