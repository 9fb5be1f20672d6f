"""Which way weights take to which engine, in what order GPU memory changes hands, and what a failure costs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from longshore_runtime.errors import EngineDied, WeightsUnavailable
from longshore_runtime.places import Place
from longshore_runtime.rollout.engine_replies import EngineLate
from longshore_runtime.rollout.published import Delivered, StoredWeights
from longshore_runtime.trainer.direct_weights import DirectWeights
from longshore_runtime.trainer.replica_places import ReplicaPlaces
from longshore_runtime.weights.buckets import combined_checksum
from longshore_runtime.weights.shared import BroadcastGroup, BucketPart, BufferHandle, SharedBucket, Slot
from longshore_runtime.weights.slices import Checksum

LOST = "Connection closed by peer"
SLICES = [Checksum("float32", (4,), start, start + 2, ((start, start),)) for start in (0, 2)]


def part(rank: int, number: int) -> BucketPart:
    """One of two buckets, with half of a parameter each."""
    return BucketPart(BufferHandle(16, file=f"rank {rank}"), (Slot("a", 0, 8, SLICES[number]),))


@dataclass
class Answer:
    """Answer of an engine."""

    value: Any = None

    def get(self, timeout_s: float | None = None) -> Any:
        if isinstance(self.value, EngineLate) and timeout_s:
            return None
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@dataclass(eq=False)
class Engine:
    """Tells what it is asked for; `fails` in answer to a call."""

    name: str
    places: tuple[Place, ...]
    log: list[str]
    num_workers: int = 1
    fails: dict[str, Exception] = field(default_factory=dict)
    channel: BroadcastGroup | None = None
    sources: list[str] = field(default_factory=list)
    holds_bfloat16: bool = False
    checksums: list[Mapping[str, Checksum]] = field(default_factory=list)

    def command(self, method: Callable[..., Any], *args: Any) -> Answer:
        answer: Answer = getattr(self, method.__name__)(*args)
        return answer

    def begin_weights(self, channel: BroadcastGroup | None = None) -> Answer:
        self.channel = channel
        return self._answer("begin", self.holds_bfloat16)

    def load_bucket(self, bucket: SharedBucket) -> Answer:
        self.sources += [part.buffer.file if part.buffer else "broadcast" for part in bucket.parts]
        self.checksums.append(bucket.checksums)
        return self._answer("load")

    def finish_weights(self) -> Answer:
        return self._answer("finish", combined_checksum(self.checksums))

    def serve(self, policy_version: int) -> Answer:
        return self._answer("serve")

    def _answer(self, call: str, value: Any = None) -> Answer:
        self.log.append(f"{self.name} {call}")
        return Answer(self.fails.get(call, value))


@dataclass
class Copies:
    """In the place of `StoredWeights`."""

    log: list[str]

    def deliver(self, engines: Sequence[Engine], delivered: Delivered) -> list[tuple[Engine, None]]:
        delivered.num_confirmed += len(engines)
        self.log += [f"{engine.name} copies" for engine in engines]
        return [(engine, None) for engine in engines]


@dataclass
class Trainers:
    """Ranks in these places, and what becomes of their broadcasts; in the place of their `Sending`, too."""

    places: list[Place]
    log: list[str]
    lost: dict[str, str | Exception] = field(default_factory=dict)
    are_unavailable: bool = False
    in_bfloat16: bool = False

    def colocated_ranks(self, engine: Engine) -> tuple[int, ...]:
        return self._replicas.colocated_ranks(engine.places, engine.num_workers)

    def can_broadcast_to(self, engine: Engine, readers: Collection[int]) -> bool:
        return not self._replicas.shares_gpu(engine.places, self._replicas.writers(readers)[0])

    def is_cut_alike(self, ranks: Sequence[int]) -> bool:
        return False

    def begin_sending(self, readers: Collection[int], policy_version: int, *, in_pieces: bool) -> "Trainers":
        if self.are_unavailable:
            raise WeightsUnavailable("gone")
        self.log.append("send")
        ranks = sorted(readers) or [0]
        self._buckets = [{rank: part(rank, number) for rank in ranks} for number in range(2)]
        return self

    def begin_copies(self, policy_version: int) -> Callable[[], Copies]:
        self.log.append("copy")
        copies = [Copies(self.log)]
        return lambda: copies.pop()  # Streams can be read once.

    def channel(self, num_workers: int) -> BroadcastGroup:
        return BroadcastGroup("host", 1, num_workers + 1)

    def join(self, channel: BroadcastGroup) -> str | None:
        return self._outcome("join")

    def next(self) -> Mapping[int, BucketPart] | None:
        return self._buckets.pop(0) if self._buckets else None

    def broadcast(self) -> Callable[[], str | None]:
        return lambda: self._outcome("broadcast")

    def end(self) -> None:
        self.log.append("end")

    def _outcome(self, call: str) -> str | None:
        outcome = self.lost.get(call)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def _replicas(self) -> ReplicaPlaces:
        return ReplicaPlaces(self.places, 1)


class Run:
    """Engines of two GPUs in pods of two, and trainers on these GPUs."""

    def __init__(self, trainers: list[Place], num_pods: int = 2, **trainer_options: Any) -> None:
        self.log: list[str] = []
        self.trainers = Trainers(trainers, self.log, **trainer_options)
        self.engines = [Engine(f"e{pod}", (Place(pod, (0, 1)),), self.log, num_workers=2) for pod in range(num_pods)]
        self.weights = DirectWeights(self.trainers, 3)  # type: ignore[arg-type]
        self.delivered = Delivered(num_pods)

    def deliver(self) -> dict[str, str | None]:
        """What becomes of the engines."""
        outcomes = self.weights.deliver(self.engines, self.delivered)  # type: ignore[arg-type]
        return {engine.name: failure and str(failure) for engine, failure in outcomes}  # type: ignore[attr-defined]


EVERYWHERE = [Place(pod, (gpu,)) for pod in range(2) for gpu in range(2)]
ONE_PER_POD = [Place(0, (0,)), Place(1, (0,))]
ELSEWHERE = [Place(7, (0,))]


def test_engines_take_memory_to_serve_after_all_reads_and_once_trainers_gave_theirs() -> None:
    run = Run(EVERYWHERE)
    assert run.deliver() == {"e0": None, "e1": None}
    assert run.engines[0].sources == ["rank 0", "rank 1"] * 2
    assert run.log.index("end") > max(run.log.index("e0 finish"), run.log.index("e1 finish"))
    assert run.log[run.log.index("end") :] == ["end", "e0 serve", "e1 serve"]


def test_an_engine_on_the_gpu_of_the_rank_that_broadcasts_is_given_copies() -> None:
    """NCCL takes no two members on one GPU. The copies are made before any engine takes the memory to serve."""
    run = Run(ONE_PER_POD)
    assert run.deliver() == {"e0": None, "e1": None}
    assert run.engines[0].sources == []
    assert run.engines[1].sources == ["broadcast"] * 2
    assert run.engines[1].channel == BroadcastGroup("host", 1, size=3, first=1)
    assert run.log[run.log.index("end") :] == ["end", "copy", "e1 serve", "e0 copies"]


@pytest.mark.parametrize("held", [(True, True), (True, False), (False, False)])
def test_weights_are_rounded_only_where_all_engines_hold_them_so(held: tuple[bool, bool]) -> None:
    run = Run(EVERYWHERE)
    for engine, holds in zip(run.engines, held, strict=True):
        engine.holds_bfloat16 = holds
    run.deliver()
    assert run.trainers.in_bfloat16 == all(held)


def test_nothing_is_sent_when_all_engines_are_given_copies() -> None:
    run = Run(ONE_PER_POD[:1], num_pods=1)
    assert run.deliver() == {"e0": None}
    assert run.log == ["copy", "e0 copies"]
    run.weights.stored()
    assert run.log == ["copy", "e0 copies"], "who joins later is given the same ones"


def test_engines_elsewhere_count_as_members_after_the_trainer() -> None:
    run = Run(ELSEWHERE)
    assert run.deliver() == {"e0": None, "e1": None}
    assert [engine.channel for engine in run.engines] == [
        BroadcastGroup("host", 1, 5, first=1),
        BroadcastGroup("host", 1, 5, first=3),
    ]


@pytest.mark.parametrize("call", ["join", "broadcast"])
def test_engines_that_a_broadcast_costs_are_reported_why(call: str) -> None:
    run = Run(ELSEWHERE, lost={call: LOST})
    for engine in run.engines:
        engine.fails = {"begin": EngineLate("late"), "load": EngineLate("late")}  # They wait for the others.
    reason = f"the broadcast of the weights broke off: {LOST}"
    outcomes = run.weights.deliver(run.engines, run.delivered)  # type: ignore[arg-type]
    assert [str(failure) for _, failure in outcomes] == [reason] * 2
    assert len({id(failure) for _, failure in outcomes}) == 2, "an exception is raised once"
    assert "e0 serve" not in run.log


def test_an_engine_that_died_by_itself_is_not_said_to_have_missed_a_broadcast() -> None:
    run = Run(ELSEWHERE, lost={"broadcast": LOST})
    run.engines[0].fails = {"load": EngineDied("CUDA out of memory")}
    run.engines[1].fails = {"load": EngineLate("late")}
    assert run.deliver() == {"e0": "CUDA out of memory", "e1": f"the broadcast of the weights broke off: {LOST}"}


def test_what_is_no_lost_peer_is_not_an_engines_fault() -> None:
    run = Run(ELSEWHERE, lost={"broadcast": AssertionError("join comes first")})
    with pytest.raises(AssertionError, match="join comes first"):
        run.deliver()


def test_an_engine_with_wrong_weights_or_that_cannot_serve_is_lost_and_others_serve() -> None:
    run = Run(EVERYWHERE)
    run.engines[0].checksums.append({"b": SLICES[0]})
    assert run.deliver() == {"e0": "the engine received other weights than were published", "e1": None}
    assert "e0 serve" not in run.log
    run = Run(EVERYWHERE)
    run.engines[1].fails = {"serve": EngineDied("no memory for the KV cache")}
    assert run.deliver() == {"e0": None, "e1": "no memory for the KV cache"}


def test_weights_that_are_gone_reach_nobody() -> None:
    assert Run(EVERYWHERE, are_unavailable=True).deliver() == {"e0": "gone", "e1": "gone"}


def test_a_delivery_says_how_many_engines_have_the_weights_and_how_much_has_come() -> None:
    run = Run(ONE_PER_POD)
    seen: list[int] = []
    next_bucket = run.trainers.next

    def watched() -> Mapping[int, BucketPart] | None:
        seen.append(run.delivered.num_bytes)
        return next_bucket()

    run.trainers.next = watched  # type: ignore[method-assign]
    run.deliver()
    assert seen == [0, 0, 8], "while one bucket is loaded the next is written"
    assert run.delivered == Delivered(num_engines=2, num_confirmed=2, num_bytes=16)
    run = Run(EVERYWHERE)
    run.engines[0].checksums.append({"b": SLICES[0]})
    run.deliver()
    assert run.delivered.num_confirmed == 1, "the other has loaded other weights"


def test_engines_that_are_given_copies_count_one_after_the_other() -> None:
    delivered = Delivered(3)
    seen: list[int] = []

    class Loading:
        def __init__(self, checksum: str) -> None:
            self.checksum = checksum

        def publish(self, buckets: tuple[Any, ...], policy_version: int) -> "Loading":
            return self

        def get(self, timeout_s: float) -> str:
            seen.append(delivered.num_confirmed)
            return self.checksum

    engines: list[Any] = [Loading("right"), Loading("wrong"), Loading("right")]
    StoredWeights((), "right", 1).deliver(engines, delivered)
    assert (seen, delivered.num_confirmed) == ([0, 1, 1], 2)
