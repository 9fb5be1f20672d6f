"""Mixes of RollPacker's jobs that share GPUs, and the table about them."""

import re

from tools.sharing_figures import PAGE

from longshore.sim.paper.rollpacker import RollPackerConstants
from longshore.sim.paper.sharing import MIXES, Mix, compare_mixes


def test_two_jobs_share_and_stay_within_their_limit() -> None:
    (row,) = compare_mixes(RollPackerConstants(), [Mix({"7B": 2}, 1.5)], num_steps=2)
    assert (row.mix.described, row.result.num_gpus_alone) == ("2 × 7B on 16", 32)
    assert row.result.num_gpus == 4 + 4 + 12
    assert 1 < row.result.max_slowdown <= 1.5
    assert row.result.gain > 1.2  # Of two steps, each job waits in the first one.
    assert row.fewer_gpus_gain > 1


def test_the_page_has_a_row_for_every_mix_and_no_job_is_past_its_limit() -> None:
    rows = re.findall(
        r"^\| (.*) \| ([\d.]+) \| \d+ \| \d+ \| \d+ \| ([\d.]+) \| ([\d.]+) × \|", PAGE.read_text(), re.MULTILINE
    )
    assert [(jobs, float(limit)) for jobs, limit, *_ in rows] == [(mix.described, mix.max_slowdown) for mix in MIXES]
    assert all(float(slowdown) <= float(limit) for _, limit, slowdown, _ in rows)
