"""Rounds on engines of known speed, for the benefit gate: a small world of its own, apart from the simulator."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from longshore.api.round_status import RoundKind
from longshore.policy.benefit_gate import BenefitGate, StepOutcome
from longshore.policy.draws import Draw
from longshore.policy.engine_load import EngineLoad
from longshore.policy.rollout_pace import RolloutPace
from longshore.policy.round import ResponseId
from longshore.policy.scale_down import Benefit, MilestoneLoad, MilestonePodLoad, RolloutEngine

NUM_ENGINES = 4
LEAVING = (0, 1)
FIRST_SHARE = 0.25
REPLICAS = [frozenset({pod}) for pod in range(NUM_ENGINES)]
PODS = tuple(MilestonePodLoad(pod, num_gpus=1, kv_capacity_tokens=1_000, num_tokens=0) for pod in range(NUM_ENGINES))
LOAD = MilestoneLoad(PODS, tuple(RolloutEngine(pod, (pod,), 1, 1_000) for pod in range(NUM_ENGINES)), peak_tokens=0)


@dataclass(frozen=True)
class World:
    """What hardware does to a job. Every pod holds an engine and a replica."""

    base_s: float
    """Seconds of a decode step, whatever runs."""
    per_request_s: float
    """Seconds of a decode step, for each request."""
    tokens_per_s: float
    """Tokens per second of one replica."""
    wake_s: float = 0.0
    contention: float = 1.0
    """How much slower engines are while trainers run beside them."""
    streamed_share: float = 1.0
    """Share of the woken replicas' time in which there were groups to train on."""

    def step_s(self, num_running: int) -> float:
        """A decode step."""
        return self.base_s + self.per_request_s * num_running


@dataclass
class Engine:
    """Requests by the steps that they still make."""

    step: int = 0
    at_s: float = 0.0
    left: dict[ResponseId, int] = field(default_factory=dict)

    def next_s(self, world: World, factor: float) -> float:
        """When its next request finishes."""
        return self.at_s + factor * min(self.left.values()) * world.step_s(len(self.left))

    def advance(self, num_steps: int, at_s: float) -> None:
        """It has made these steps by then."""
        self.step, self.at_s = self.step + num_steps, at_s
        self.left = {response: steps - num_steps for response, steps in self.left.items()}


@dataclass(frozen=True)
class Played:
    """A step that is over."""

    step_s: float
    benefit: Benefit | None
    has_repurposed: bool
    saved_s: float | None
    """As the gate tells."""


def play(
    world: World,
    gate: BenefitGate,
    lengths: Sequence[int],
    kind: RoundKind = RoundKind.LONG,
    *,
    loses_engine: bool = False,
) -> Played:
    """A step: its requests go round the engines, and half of these leave at the milestone if the gate wants it."""
    pace = gate.begin_round(tp_size=1)
    engines = {number: Engine() for number in range(NUM_ENGINES)}
    pace.begun(kind, dict.fromkeys(engines, 0), 1_000, 0.0)
    for index, length in enumerate(lengths):
        response = ResponseId(Draw(0, index), 0)
        engines[index % NUM_ENGINES].left[response] = length
        pace.placed(index % NUM_ENGINES, [response], 0.0)
    benefit, repurposed_s, factor, num_finished, now_s = None, None, 1.0, 0, 0.0
    while any(engine.left for engine in engines.values()):
        busy = {number: engine for number, engine in engines.items() if engine.left}
        number = min(busy, key=lambda one: (busy[one].next_s(world, factor), one))
        now_s = busy[number].next_s(world, factor)
        if loses_engine:
            pace.engine_lost()
        num_finished += _finish(pace, number, engines[number], now_s)
        if benefit is None and num_finished >= FIRST_SHARE * len(lengths):
            pace.milestone(now_s)
            benefit = gate.expect(kind, LOAD, REPLICAS)
            if benefit is not None and benefit.is_wanted:
                repurposed_s, factor = now_s, world.contention
                _repurpose(pace, engines, world, now_s)
            benefit = benefit or Benefit(None, None, is_wanted=False)
    streamed = 0
    if repurposed_s is not None:
        awake_s = max(0.0, now_s - repurposed_s - world.wake_s)
        computable = len(LEAVING) * world.tokens_per_s * awake_s
        streamed = round(world.streamed_share * min(sum(lengths), computable))
    train_s = (sum(lengths) - streamed) / (NUM_ENGINES * world.tokens_per_s)
    saved_s = gate.ended(
        StepOutcome(
            kind=kind,
            step_s=now_s + train_s,
            batch_tokens=sum(lengths),
            streamed_tokens=streamed,
            num_replicas=NUM_ENGINES,
            tokens_per_s=world.tokens_per_s,
            num_awake=len(LEAVING) if repurposed_s is not None else 0,
            wake_s=world.wake_s,
        )
    )
    return Played(now_s + train_s, benefit, repurposed_s is not None, saved_s)


def never_s(world: World, lengths: Sequence[int]) -> float:
    """The same step with all engines to the end."""
    return play(world, BenefitGate(), lengths).step_s


def _finish(pace: RolloutPace, number: int, engine: Engine, now_s: float) -> int:
    engine.advance(min(engine.left.values()), now_s)
    done = [response for response, steps in engine.left.items() if steps == 0]
    for response in done:
        del engine.left[response]
    load = EngineLoad(len(engine.left), 0, 0.0, 0, now_s)
    pace.left(number, dict.fromkeys(done, engine.step), done, load, now_s)
    return len(done)


def _repurpose(pace: RolloutPace, engines: dict[int, Engine], world: World, now_s: float) -> None:
    """Every engine stops at its last whole step."""
    pace.engines_left(LEAVING, now_s)
    for engine in engines.values():
        num_steps = int((now_s - engine.at_s) / world.step_s(len(engine.left)) + 1e-9) if engine.left else 0
        engine.advance(min([num_steps, *(steps - 1 for steps in engine.left.values())]), now_s)
    for number in LEAVING:
        leaving = engines[number]
        load = EngineLoad(0, 0, 0.0, 0, now_s)
        pace.left(number, dict.fromkeys(leaving.left, leaving.step), (), load, now_s)
        for response, steps in leaving.left.items():
            target = min((one for one in engines if one not in LEAVING), key=lambda one: len(engines[one].left))
            engines[target].left[response] = steps
            pace.placed(target, [response], now_s)
        leaving.left = {}
