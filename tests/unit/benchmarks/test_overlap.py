"""How much gradient work lies before the end of a rollout."""

import pytest
from benchmarks.overlap import Pass, overlap_share


def test_passes_count_by_tokens_and_by_the_part_of_them_that_was_done() -> None:
    passes = [
        Pass(0, num_tokens=300, given_s=0.0, begun_s=1.0, done_s=2.0),
        Pass(1, num_tokens=100, given_s=0.0, begun_s=3.0, done_s=5.0),
        Pass(0, num_tokens=600, given_s=3.0, begun_s=4.0, done_s=6.0),
    ]
    assert overlap_share(passes, 4.0) == pytest.approx((300 + 50) / 1000)
    assert overlap_share(passes, 0.5) == 0.0
    assert overlap_share(passes, 6.0) == 1.0
