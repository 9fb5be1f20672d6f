"""When half of the GPUs stop sampling and start training, and which (RollPacker, section 4.4 and Algorithm 1).

A round's last requests leave engines idle. Between 20 % and 50 % of finished requests, what still runs may fit half of
the engines; then the others compute gradients for the rest of the round. Where gates hold requests back, every engine
is needed until the last of them is launched. Nothing here outlives a round.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from longshore.api.shapes import sets_that_train
from longshore.policy.length_distribution import LengthDistribution
from longshore.policy.progress import RoundProgress

FIRST_SHARE: Final = 0.2
"""Share of finished requests before which hardly anything waits for the trainer."""
LAST_SHARE: Final = 0.5
"""Once this share has finished of the requests that nothing followed, too little of the round is left."""
CHECK_EVERY_SHARE: Final = 0.05
"""Requests that must have finished between two checks."""
MAX_KV_PEAK: Final = 0.9
"""Largest projected peak, as a share of the KV cache that is left. The rest is for what the projection, an expected
value over evenly filled engines, leaves out: chance, uneven engines and half-filled blocks."""
NUM_HORIZONS: Final = 64
"""Steps of the projection; the projected peak exceeds the exact one by at most 1/64 of the length limit per request."""
_NO_ENGINE: Final = -1


@dataclass(frozen=True)
class RolloutEngine:
    """An engine."""

    number: int
    pods: tuple[int, ...]
    """Pods in which it lies; in several it has as many GPUs in each."""
    num_gpus: int
    """Tensor-parallel size of the engine."""
    kv_capacity_tokens: int
    """Tokens that its KV cache holds: blocks x block size, or bytes / bytes per token."""


@dataclass(frozen=True)
class RunningRequest:
    """A request that an engine runs, or that waits there."""

    engine: int
    prompt_tokens: int
    generated_tokens: int


@dataclass(frozen=True)
class ScaleDown:
    """These pods go to the trainer for the rest of the round; their requests go to the other pods."""

    pods: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class KeepSampling:
    """Every pod goes on sampling."""

    reason: str


@dataclass(frozen=True)
class MilestonePodLoad:
    """Load of the engines of one pod; of one in several pods, this pod's share."""

    pod: int
    num_gpus: int
    kv_capacity_tokens: int
    num_tokens: int
    """Tokens of the requests that run there, prompts included: a migration would compute them again."""


@dataclass(frozen=True)
class MilestoneLoad:
    """Load by which `decide` chooses at a milestone."""

    pods: tuple[MilestonePodLoad, ...]
    engines: tuple[RolloutEngine, ...]
    """Engines of the pods."""
    peak_tokens: int
    """Projected peak of what runs and of what is still to be launched, over all engines."""


@dataclass(frozen=True)
class Benefit:
    """What repurposing is expected to change in the step, and whether it is wanted (`BenefitGate`)."""

    rollout_longer_s: float | None
    """The price; None: no round of this kind is over."""
    training_shorter_s: float | None
    """The gain; None as above."""
    is_wanted: bool
    is_trial: bool = False
    """Wanted although it may cost: nothing is known of rounds of this kind, or no longer."""

    @property
    def described(self) -> str:
        """Half a sentence about the benefit, with its figures."""
        if self.rollout_longer_s is None or self.training_shorter_s is None:
            return "what it changes in a round of this kind is not known yet"
        saved_s = self.training_shorter_s - self.rollout_longer_s
        sooner = f"{_seconds(abs(saved_s))} {'sooner' if saved_s >= 0 else 'later'}"
        price, gain = _seconds(self.rollout_longer_s), _seconds(self.training_shorter_s)
        figures = f"the step is expected to end {sooner} (rollout {price} longer, training {gain} shorter)"
        is_overdrawn = saved_s >= 0 and not self.is_wanted
        return f"{figures}, but earlier repurposing cost more than was expected" if is_overdrawn else figures


@dataclass(frozen=True)
class AdaptiveRule:
    """Conditions that `trigger: Adaptive` adds."""

    benefit: Benefit | None
    """Expected benefit; None: nothing is known yet."""


class Milestones:
    """The moments of one round at which pods may be repurposed."""

    def __init__(self, fixed_share: float | None = None) -> None:
        """Decide when to look.

        Args:
            fixed_share: share of its groups that the batch has at the only moment; None: every CHECK_EVERY_SHARE of
                finished requests between FIRST_SHARE and LAST_SHARE.
        """
        self._fixed_share = fixed_share
        self._is_closed = False
        self._num_finished_at_check = 0
        self._num_finished_at_gates = 0
        """When something was last held back by a gate: what finished until then was followed by other requests."""

    def is_due(self, progress: RoundProgress) -> bool:
        """Return whether to look now; the next look is then due later."""
        if progress.num_held or progress.num_returning:
            self._num_finished_at_gates = progress.num_finished
            return False
        if self._is_closed or progress.num_requests == 0 or not self._has_come(progress):
            return False
        self._num_finished_at_check = progress.num_finished
        return True

    def close(self) -> None:
        """Note that pods have been repurposed, which happens once in a round: no other moment follows."""
        self._is_closed = True

    def _has_come(self, progress: RoundProgress) -> bool:
        if self._fixed_share is not None:
            is_first = self._num_finished_at_check == 0
            return is_first and progress.num_accepted >= self._fixed_share * progress.num_groups
        num_ended = progress.num_finished - self._num_finished_at_gates
        num_last = progress.num_requests - self._num_finished_at_gates
        if progress.fraction_finished < FIRST_SHARE or num_ended > LAST_SHARE * num_last:
            return False
        return progress.num_finished - self._num_finished_at_check >= CHECK_EVERY_SHARE * progress.num_requests


def rollout_load(
    progress: RoundProgress,
    engines: Sequence[RolloutEngine],
    running: Sequence[RunningRequest],
    lengths: LengthDistribution,
    max_response_tokens: int,
) -> MilestoneLoad:
    """Return how full the engines are, and will be with what is still to be launched."""
    everything = [*running, *expected_requests(progress.num_expected, running)]
    peak_tokens = projected_peak_tokens(everything, lengths, max_response_tokens)
    return MilestoneLoad(tuple(pod_loads(engines, running)), tuple(engines), round(peak_tokens))


def decide(
    share: float,
    pods: Sequence[MilestonePodLoad],
    trainer_replicas: Sequence[frozenset[int]],
    peak_tokens: float,
    rule: AdaptiveRule | None,
    engines: Iterable[frozenset[int]] = (),
) -> ScaleDown | KeepSampling:
    """Return whether half of the GPUs can train when `share` of the round's requests has finished, and should.

    `peak_tokens` is the projected peak of what runs, over all engines; `rule`: None takes any (`trigger: Fixed`).
    `trainer_replicas`, `engines`: see `pick_pods`.
    """
    picked = pick_pods(pods, trainer_replicas, engines)
    if not picked:
        return KeepSampling(unavailable_reason(pods))
    remaining = sum(load.kv_capacity_tokens for load in pods if load.pod not in picked)
    peak = peak_tokens / remaining
    moved = sum(load.num_gpus for load in pods if load.pod in picked)
    total = sum(load.num_gpus for load in pods)
    reason = f"{moved} of {total} GPUs to training at {_percent(share)}: projected KV peak {_percent(peak)}"
    if rule is None:
        return ScaleDown(picked, reason)
    if peak > MAX_KV_PEAK:
        return KeepSampling(f"projected KV peak {_percent(peak)} is over {_percent(MAX_KV_PEAK)} at {_percent(share)}")
    if rule.benefit is None:
        return KeepSampling("every pod samples in the first step of a job, which tells what repurposing would change")
    if not rule.benefit.is_wanted:
        return KeepSampling(rule.benefit.described)
    trial = "a trial: " if rule.benefit.is_trial else ""
    return ScaleDown(picked, f"{reason}; {trial}{rule.benefit.described}")


def pod_loads(engines: Iterable[RolloutEngine], running: Iterable[RunningRequest]) -> list[MilestonePodLoad]:
    """Return engines and what they run, pod by pod."""
    num_tokens: dict[int, int] = {}
    for request in running:
        tokens = request.prompt_tokens + request.generated_tokens
        num_tokens[request.engine] = num_tokens.get(request.engine, 0) + tokens
    pods: dict[int, list[RolloutEngine]] = {}
    for engine in engines:
        for pod in engine.pods:
            pods.setdefault(pod, []).append(engine)
    return [
        MilestonePodLoad(
            pod,
            num_gpus=sum(engine.num_gpus // len(engine.pods) for engine in inside),
            kv_capacity_tokens=sum(engine.kv_capacity_tokens // len(engine.pods) for engine in inside),
            num_tokens=sum(num_tokens.get(engine.number, 0) // len(engine.pods) for engine in inside),
        )
        for pod, inside in sorted(pods.items())
    ]


def pick_pods(
    pods: Iterable[MilestonePodLoad],
    trainer_replicas: Sequence[frozenset[int]],
    engines: Iterable[frozenset[int]] = (),
) -> tuple[int, ...]:
    """Return the whole sets of pods with at most half of the GPUs; empty if there are none.

    Those with the fewest tokens of running requests go first, since migrating is computing tokens again; ties: the
    lower pod. `sets_that_train` says what a set is.
    """
    by_pod = {load.pod: load for load in pods}
    left = sum(load.num_gpus for load in by_pod.values()) // 2
    picked: list[int] = []
    whole = [one for one in sets_that_train(trainer_replicas, engines) if one <= by_pod.keys()]
    for group in sorted(whole, key=lambda group: (sum(by_pod[pod].num_tokens for pod in group), min(group))):
        needed = sum(by_pod[pod].num_gpus for pod in group)
        if needed <= left:
            left -= needed
            picked += group
    return tuple(sorted(picked))


def unavailable_reason(pods: Iterable[MilestonePodLoad]) -> str:
    """Return why `pick_pods` found none."""
    if len({load.pod for load in pods}) <= 1:
        return "one pod holds all GPUs, and pods are repurposed whole"
    return "no set of whole pods with a trainer replica fits in half of the GPUs"


def expected_requests(count: int, running: Sequence[RunningRequest]) -> list[RunningRequest]:
    """Return requests that will be launched, as if they began now; their prompts are like the others."""
    prompt_tokens = round(fmean(request.prompt_tokens for request in running)) if running else 0
    return [RunningRequest(_NO_ENGINE, prompt_tokens, generated_tokens=0)] * count


def projected_peak_tokens(
    running: Iterable[RunningRequest], lengths: LengthDistribution, max_response_tokens: int
) -> float:
    """Return the expected peak of the tokens that running requests hold in KV caches, from here to their ends.

    A request that has generated g tokens still runs h steps later with probability S(g + h) / S(g), and then holds
    prompt + g + h tokens. The sum is bounded from above in each of NUM_HORIZONS intervals: the requests that run at its
    beginning, with the tokens of its end. All advance alike, one token a step. What is still to be launched counts from
    now on (`expected_requests`).
    """
    requests_by_generated: dict[int, tuple[int, int]] = {}
    for request in running:
        count, prompts = requests_by_generated.get(request.generated_tokens, (0, 0))
        requests_by_generated[request.generated_tokens] = (count + 1, prompts + request.prompt_tokens)
    longest = max_response_tokens - min(requests_by_generated, default=max_response_tokens)
    width = max(1, -(-longest // NUM_HORIZONS))
    usage = [0.0] * NUM_HORIZONS
    for generated, (count, prompts) in requests_by_generated.items():
        for interval in range(NUM_HORIZONS):
            begin = generated + interval * width
            alive = lengths.conditional_survival(generated, begin - generated)
            if alive == 0 or begin >= max_response_tokens:
                break
            usage[interval] += alive * (prompts + count * min(begin + width, max_response_tokens))
    return max(usage)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if abs(seconds) >= 9.5 else f"{seconds:.2g} s"
