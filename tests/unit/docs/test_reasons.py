"""The troubleshooting page has every reason that the operator writes, as it promises."""

from pathlib import Path

import pytest

from longshore.api.reasons import CONDITIONS, EVENTS
from longshore.api.status import ConditionType

_PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "troubleshoot.md").read_text(encoding="utf-8")
_REASONS = {reason for about in CONDITIONS.values() for kind in about.reasons for reason in kind} | set(EVENTS)


def test_every_condition_has_its_reasons() -> None:
    assert list(CONDITIONS) == list(ConditionType)


@pytest.mark.parametrize("reason", sorted(_REASONS))
def test_the_page_says_what_to_do(reason: str) -> None:
    assert f"`{reason}`" in _PAGE
