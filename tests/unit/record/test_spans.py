"""A step as spans: children lie within their parents, and a large round has only its longest responses."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.record.build import round_record
from longshore.record.spans import Span, step_span
from tests.properties import examples
from tests.unit.policy.rounds import Job
from tests.unit.policy.test_round_policies import jobs
from tests.unit.record.facts import TAIL_BATCHING, played


def every(span: Span) -> Iterator[tuple[Span, Span]]:
    """(parent, child) of a tree."""
    for child in span.children:
        yield span, child
        yield from every(child)


@settings(max_examples=examples(30), deadline=None)
@given(jobs(), st.integers(0, 2**32))
def test_spans_lie_within_the_step_and_every_response_has_one(job: Job, seed: int) -> None:
    record = round_record(played(job, seed, num_rounds=1)[0].facts)
    step = step_span(record)
    pairs = list(every(step))
    assert all(step.start <= child.start <= child.end <= step.end + 1e-3 for _, child in pairs)
    assert sum(child.name == "response" for _, child in pairs) == len(record.responses)


def test_of_a_large_round_the_longest_responses_have_spans() -> None:
    record = round_record(played(TAIL_BATCHING, 3)[0].facts)
    (rollout,) = [phase for phase in step_span(record, max_responses=2).children if phase.name == "rollout"]
    assert len(rollout.children) == 2
    longest = max(child.end - child.start for child in rollout.children)
    assert longest >= max(row.engine_s for row in record.responses)
