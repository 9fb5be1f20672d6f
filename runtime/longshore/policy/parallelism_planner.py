"""Which tensor-parallel size the engines have in each kind of round (RollPacker, section 4.2).

Short rounds run more requests at once than long ones and so preempt more; a larger size leaves more memory to the KV
cache, and costs communication. Each kind of round has its own size, its own history, and its own way up and down.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import ceil, log2
from statistics import median
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from longshore.api.limits import MAX_COUNT
from longshore.api.round_status import RoundKind

RISE_FACTOR: Final = 1.05
"""Multiple of the reference above which preemptions are a rise (the paper's figure)."""
MIN_RISE_PREEMPTIONS: Final = 20
"""Fewer are never a rise: below 20, a single request more already exceeds 1.05 times the reference."""
ZERO_ROUNDS: Final = 4
"""Rounds of a kind in a row without a preemption before its size is halved (the paper's figure)."""
REFERENCE_ROUNDS: Final = 4
"""Rounds of a kind whose median is the reference: the short rounds of a usual period."""
FIRST_COOL_DOWN_ROUNDS: Final = 8
"""Rounds of a kind in which a size that proved too small is not tried again; doubles each time that it proves so."""
PAYBACK_ROUNDS: Final = 20
"""Rounds, of all kinds, in which a change must earn back its cost: four usual periods. A load rarely stays the same for
longer, since the lengths of responses change as the model learns."""
OVERLOAD_SHARE: Final = 0.5
"""Preemptions per launched request from which on a round is overloaded: every other request is computed again."""
OVERLOAD_ROUNDS: Final = 4
"""Overloaded rounds of a kind in a row before its size is doubled, though nothing has risen."""
KEPT_PER_DOUBLING: Final = 0.8
"""Share of preemptions that doubling is expected to leave where nothing is known: the paper measured 21 % fewer."""


@dataclass(frozen=True)
class RolloutProfile:
    """Figures of the offline profile; with them, a change must be worth its cost."""

    switch_s: float
    """Seconds that a regroup costs."""
    preemption_s: float
    """Seconds that a preemption adds to a round."""
    round_s: Mapping[RoundKind, Mapping[int, float]]
    """Rollout time of a round of a kind by tensor-parallel size, without preemptions."""
    num_preemptions: Mapping[RoundKind, Mapping[int, float]] = field(default_factory=dict)
    """Preemptions of a round of a kind, by tensor-parallel size; empty where the profile has none."""

    def predicted_s(self, kind: RoundKind, tp_size: int, known_preemptions: Mapping[int, float]) -> float:
        """Return the rollout time of a round, given the preemptions seen at some sizes.

        The nearest one stands for others.
        """
        num_preemptions = 0.0
        if known_preemptions:
            nearest = min(known_preemptions, key=lambda size: (abs(log2(size / tp_size)), size))
            num_preemptions = known_preemptions[nearest] * KEPT_PER_DOUBLING ** log2(tp_size / nearest)
        return self.round_s[kind][tp_size] + self.preemption_s * num_preemptions


@dataclass(frozen=True)
class Regroup:
    """Decision that rounds of these kinds run with engines of `tp_size` from here on."""

    kinds: tuple[RoundKind, ...]
    tp_size: int
    reason: str


class ParallelismPlanner:
    """Sizes by kind of round. Pure: the same rounds give the same sizes.

    A rise in preemptions doubles the size of its kind, as does an overload that lasts; four rounds without any halve
    it. A size that was left by doubling is not taken again before its cool-down is over, which doubles each time; so
    the number of changes grows with the logarithm of the number of rounds only, whatever the load does. With a
    profile, a change must also pay.
    """

    def __init__(
        self,
        default: Mapping[RoundKind, int],
        allowed: Iterable[int],
        profile: RolloutProfile | None = None,
        profiled_preemptions: Mapping[RoundKind, float] | None = None,
        period: Sequence[RoundKind] = (),
    ) -> None:
        """Begin with the sizes of the offline profile.

        Args:
            default: best size by the profile, for the kinds of round that the job has.
            allowed: sizes that fill the pods and that the model can be divided into.
            profiled_preemptions: preemptions per round at the default sizes, until rounds tell.
            period: rounds in their usual order until rounds tell; else each kind in turn.

        Raises:
            ValueError: the default is not possible, or the profile leaves a size out.
        """
        assert default, "a job has rounds of some kind"
        self._sizes = tuple(sorted(set(allowed)))
        self._profile = profile
        _check(default, self._sizes, profile)
        self._order = deque(_usual_order(period or tuple(default)), maxlen=PAYBACK_ROUNDS)
        expected = profiled_preemptions or {}
        self._kinds = {kind: _Kind(size, expected.get(kind)) for kind, size in default.items()}

    def tp_size(self, kind: RoundKind) -> int:
        """Return the size of the engines in a round of this kind."""
        return self._kinds[kind].tp_size

    def round_ended(self, kind: RoundKind, num_preemptions: int, num_requests: int = 0) -> Regroup | None:
        """Note that a round is over that launched so many requests, if that is known; None: every size stays."""
        state = self._kinds[kind]
        reference = state.reference
        self._order.append(kind)
        state.add(num_preemptions, num_requests)
        why = ""
        if is_rise(num_preemptions, reference):
            why = f"{num_preemptions} preemptions in a {kind} round, usually {reference:.0f}"
        elif state.overload_streak >= OVERLOAD_ROUNDS:
            of = f"{num_preemptions} preemptions of {num_requests} requests"
            why = f"{of} in the last of {state.overload_streak} overloaded {kind} rounds"
        if why:
            regroup = self._best(kind, 2 * state.tp_size, why)
            if regroup is not None:
                state.proved_too_small()
        elif state.zero_streak >= ZERO_ROUNDS and state.tp_size % 2 == 0:
            regroup = self._best(kind, state.tp_size // 2, f"no preemption in {state.zero_streak} {kind} rounds")
        else:
            regroup = None
        if regroup is not None:
            for changed in regroup.kinds:
                self._kinds[changed].change(regroup.tp_size)
        return regroup

    def refused(self, size: int, actual: int) -> tuple[RoundKind, ...]:
        """Note that engines of `size` did not start and have the size `actual`, with which rounds go on.

        They do not take it again before a cool-down, which doubles each time. Returns their kinds.
        """
        kinds = tuple(kind for kind, state in self._kinds.items() if state.tp_size == size and actual in self._sizes)
        for kind in kinds:
            self._kinds[kind].refuse(actual)
        return kinds

    def _best(self, kind: RoundKind, size: int, why: str) -> Regroup | None:
        """Return the kind alone, or all kinds alike where regrouping within each period costs more than it brings.

        All kinds move together only in one direction: a rise makes no kind's engines smaller.
        """
        if size not in self._sizes or not self._kinds[kind].may_take(size):
            return None
        alone = Regroup((kind,), size, f"tensor-parallel size {self.tp_size(kind)} to {size}: {why}")
        profile = self._profile
        if profile is None:
            return alone
        grows = size > self.tp_size(kind)
        others = {name: state for name, state in self._kinds.items() if state.tp_size != size}
        proposals = [alone]
        if all(state.may_take(size) and (size > state.tp_size) == grows for state in others.values()):
            proposals.append(Regroup(tuple(others), size, alone.reason))
        best = min(proposals, key=lambda proposal: self._cost_s(profile, proposal))
        saving_s = self._cost_s(profile) - self._cost_s(profile, best)
        return best if saving_s > profile.switch_s else None

    def _cost_s(self, profile: RolloutProfile, change: Regroup | None = None) -> float:
        """Return what the last PAYBACK_ROUNDS rounds would take once more, with the regroups between them."""
        sizes = {kind: self.tp_size(kind) for kind in self._kinds}
        if change is not None:
            sizes |= dict.fromkeys(change.kinds, change.tp_size)
        num_switches = sum(sizes[before] != sizes[after] for before, after in pairwise(self._order))
        rounds_s = sum(
            count * profile.predicted_s(kind, sizes[kind], self._kinds[kind].known)
            for kind, count in Counter(self._order).items()
        )
        return rounds_s + num_switches * profile.switch_s

    def export_state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "order": [kind.value for kind in self._order],
            "kinds": {kind.value: state.export_state() for kind, state in self._kinds.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Undo `export_state`. A kind whose size is possible no longer starts again from its default.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: it is no such state. Use the planner no more.
        """
        self._order.extend(RoundKind(kind) for kind in state["order"] if RoundKind(kind) in self._kinds)
        for name, exported in state["kinds"].items():
            read = _KIND_STATE.validate_python(exported)
            if RoundKind(name) in self._kinds and read.tp_size in self._sizes:
                self._kinds[RoundKind(name)].load_state(read)


def best_sizes(
    profile: RolloutProfile,
    given: Mapping[RoundKind, int],
    allowed: Iterable[int],
    period: Sequence[RoundKind] = (),
) -> Mapping[RoundKind, int]:
    """Return the sizes to begin with.

    They are the best by the profile for such periods (empty: each kind in turn), or the given ones where changing them
    does not pay.
    """
    order = _usual_order(period or tuple(given))

    def cost_s(sizes: Mapping[RoundKind, int]) -> float:
        rounds_s = sum(profile.predicted_s(kind, sizes[kind], profile.num_preemptions.get(kind, {})) for kind in order)
        return rounds_s + profile.switch_s * sum(sizes[before] != sizes[after] for before, after in pairwise(order))

    candidates = (dict(zip(given, sizes, strict=True)) for sizes in product(sorted(set(allowed)), repeat=len(given)))
    best = min(candidates, key=cost_s)
    return best if cost_s(given) - cost_s(best) > profile.switch_s else given


def is_rise(num_preemptions: int, reference: float | None) -> bool:
    """Return whether a round preempted conspicuously often; without a reference nothing is conspicuous."""
    if reference is None or num_preemptions < MIN_RISE_PREEMPTIONS:
        return False
    return num_preemptions > RISE_FACTOR * reference


_Size = Annotated[int, Field(ge=1, le=MAX_COUNT)]
_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Preemptions = Annotated[float, Field(ge=0, le=MAX_COUNT)]


@dataclass(frozen=True)
class _KindState:
    """A kind of round as it is stored, where others may write too."""

    tp_size: _Size
    zero_streak: _Count
    known: list[tuple[_Size, _Preemptions]]
    recent: list[_Count]
    num_rounds: _Count
    cool_down: list[tuple[_Size, _Count, _Count]]
    overload_streak: _Count = 0
    expected: _Preemptions | None = None
    refused: list[tuple[_Size, _Count, _Count]] = field(default_factory=list)


_KIND_STATE: Final = TypeAdapter(_KindState)


class _Kind:
    """Measurements of one kind of round."""

    def __init__(self, tp_size: int, expected_preemptions: float | None) -> None:
        self.tp_size = tp_size
        self.zero_streak = self.overload_streak = 0
        """Rounds in a row at this size."""
        self.known: dict[int, float] = {}
        """Size -> usual preemptions, of this size and of larger ones that were left by halving."""
        self._recent: deque[int] = deque(maxlen=REFERENCE_ROUNDS)
        self._expected = expected_preemptions
        """Stands for the reference until there is a round at this size."""
        self._num_rounds = 0
        self._cool_down: dict[int, tuple[int, int]] = {}
        """Size that proved too small -> (round from which on it may be taken again, rounds of its last cool-down)."""
        self._refused: dict[int, tuple[int, int]] = {}
        """The same, of sizes whose engines did not start."""
        if expected_preemptions is not None:
            self.known[tp_size] = expected_preemptions

    @property
    def reference(self) -> float | None:
        """Median of recent rounds at this size."""
        return median(self._recent) if self._recent else self._expected

    def add(self, num_preemptions: int, num_requests: int) -> None:
        self._num_rounds += 1
        self._recent.append(num_preemptions)
        larger = {size: usual for size, usual in self.known.items() if size > self.tp_size}
        self.known = larger | {self.tp_size: median(self._recent)}
        self.zero_streak = self.zero_streak + 1 if num_preemptions == 0 else 0
        is_overloaded = num_requests > 0 and num_preemptions >= max(MIN_RISE_PREEMPTIONS, OVERLOAD_SHARE * num_requests)
        self.overload_streak = self.overload_streak + 1 if is_overloaded else 0

    def may_take(self, size: int) -> bool:
        """Return whether it was not refused lately, and no size from there on upwards is in its cool-down."""
        small, refused = (self._cooling(sizes) for sizes in (self._cool_down, self._refused))
        return size not in refused and all(size > one for one in small)

    def proved_too_small(self) -> None:
        self._begin_cool_down(self._cool_down)

    def refuse(self, actual: int) -> None:
        self._begin_cool_down(self._refused)
        self.change(actual)

    def _begin_cool_down(self, sizes: dict[int, tuple[int, int]]) -> None:
        _, last = sizes.get(self.tp_size, (0, 0))
        rounds = 2 * last or FIRST_COOL_DOWN_ROUNDS
        sizes[self.tp_size] = (self._num_rounds + rounds, rounds)

    def _cooling(self, sizes: Mapping[int, tuple[int, int]]) -> list[int]:
        return [size for size, (retry_at, _) in sizes.items() if self._num_rounds < retry_at]

    def change(self, size: int) -> None:
        """Change the size: after halving, the larger size's reference stays; after doubling, a round makes it."""
        self._expected = self.reference if size < self.tp_size else None
        self._recent.clear()
        self.tp_size = size
        self.zero_streak = self.overload_streak = 0

    def export_state(self) -> dict[str, Any]:
        cool_down, refused = (
            [(size, retry_at, rounds) for size, (retry_at, rounds) in sizes.items()]
            for sizes in (self._cool_down, self._refused)
        )
        state = _KindState(
            self.tp_size, self.zero_streak, list(self.known.items()), list(self._recent), self._num_rounds, cool_down,
            self.overload_streak, self._expected, refused,
        )  # fmt: skip
        as_json: dict[str, Any] = _KIND_STATE.dump_python(state, mode="json")
        return as_json

    def load_state(self, state: _KindState) -> None:
        self.tp_size, self.zero_streak, self.overload_streak = state.tp_size, state.zero_streak, state.overload_streak
        self.known = dict(state.known)
        self._recent = deque(state.recent, maxlen=REFERENCE_ROUNDS)
        self._expected = state.expected
        self._num_rounds = state.num_rounds
        self._cool_down = {size: (retry_at, rounds) for size, retry_at, rounds in state.cool_down}
        self._refused = {size: (retry_at, rounds) for size, retry_at, rounds in state.refused}


def _usual_order(period: Sequence[RoundKind]) -> list[RoundKind]:
    """Return the rounds to judge by until rounds are known: PAYBACK_ROUNDS or more, in whole periods."""
    return [*period] * ceil(PAYBACK_ROUNDS / len(period))


def _check(default: Mapping[RoundKind, int], sizes: tuple[int, ...], profile: RolloutProfile | None) -> None:
    for kind, size in default.items():
        if size not in sizes:
            raise ValueError(
                f"rollout.engine.tensorParallelSize: {size} is not possible in {kind} rounds; it must divide the GPUs "
                f"of a pod and the model's attention heads: {', '.join(map(str, sizes)) or 'no size'} would"
            )
        missing = [str(size) for size in sizes if profile is not None and size not in profile.round_s.get(kind, {})]
        if missing:
            raise ValueError(
                f"profile: it lacks the time of {kind} rounds at tensor-parallel size {', '.join(missing)}; measure "
                "them too, or leave the profile out"
            )
