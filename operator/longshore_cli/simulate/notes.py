"""What a simulation assumes, in sentences."""

from collections.abc import Iterator
from statistics import fmean, median

from longshore.api.reward import Reward
from longshore.api.rollout import Strategy
from longshore.api.spec import RLJobSpec
from longshore.sim.job import default_episodes
from longshore.sim.lengths import tokens_of
from longshore.sim.traces import COLUMNS, ENVIRONMENT_S, NUM_TURNS, OBSERVED_TOKENS, PROMPT, LengthTrace
from longshore_cli import format as fmt
from longshore_cli.simulate.inputs import Inputs, RecordedJob
from longshore_cli.simulate.prompts import CHARACTERS_PER_TOKEN
from longshore_cli.simulate.variants import StrategyVariant, num_training_gpus, total_gpus


def notes(inputs: Inputs, variants: list[StrategyVariant]) -> Iterator[str]:
    """Yield notes on the inputs and on the strategies."""
    spec = inputs.spec
    yield lengths_note(inputs)
    if spec.environments:
        yield _episodes_note(inputs)
    if inputs.trace is not None:
        yield from trace_notes(inputs.trace, spec)
    if inputs.source is not None:
        yield from source_notes(inputs.source)
    yield from _hardware_notes(inputs)
    if spec.trainer.data_parallel_size is not None:
        yield "trainer.dataParallelSize is not simulated: every replica that the GPUs hold trains."
    if spec.algorithm.dynamic_sampling:
        yield "Dynamic sampling: rewards are made up, half of them right and the longest prompts the hardest."
    yield from _reward_notes(spec.reward)
    if num_training := num_training_gpus(spec):
        own = total_gpus(spec)
        yield f"Disaggregated: {own} GPUs sample and {num_training} train; bubble and GPU hours are those of all."
        if spec.rollout.is_streamed:
            yield (
                "Streamed: what trainers with GPUs of their own compute while the round runs is not simulated; they "
                "train after it."
            )
    elif any(variant.spec.rollout.is_pipelined for variant in variants):
        yield "Pipelined: rollout and trainer share the GPUs of an RLJob, so the trainer computes after the round."
    if spec.rollout.strategy is Strategy.AUTO:
        yield "Auto is simulated with the factors that it begins with; --search shows what it may come to."
    if any(variant.strategy is Strategy.PARTIAL_ROLLOUT for variant in variants):
        yield "PartialRollout trains on tokens of older weights: it needs rollout.onPolicy: Relaxed."


def lengths_note(inputs: Inputs) -> str:
    """Return where the lengths come from."""
    longest = inputs.spec.algorithm.max_response_tokens
    by = f" ({CHARACTERS_PER_TOKEN} characters of {inputs.data} are a token)" if inputs.data is not None else ""
    if inputs.trace is None:
        return (
            f"Lengths: a long-tailed default scaled to maxResponseTokens, {longest:,}, and prompts of "
            f"{fmt.count(inputs.prompt_tokens, 'token')}{by}; pass recorded ones with --lengths."
        )
    trace = inputs.trace
    tokens = [tokens_of(length) for group in trace.lengths.responses for length in group]
    return (
        f"Lengths: {fmt.count(trace.num_responses, 'recorded response')} to {fmt.count(trace.num_prompts, 'prompt')}, "
        f"median {median(tokens):,.0f}, longest {max(tokens):,}; "
        f"prompts of {fmean(trace.lengths.prompts):,.0f} tokens{by}."
    )


def _episodes_note(inputs: Inputs) -> str:
    """Return what is assumed of turns and environments."""
    columns = f"--lengths, with the columns {NUM_TURNS}, {ENVIRONMENT_S} and {OBSERVED_TOKENS}"
    made_up = default_episodes(inputs.spec.environments)
    if inputs.trace is None and made_up is not None:
        return (
            f"Episodes: made up. 1 to {made_up.max_turns} turns (maxTurns), and {made_up.median_s:g} s for an answer "
            f"of the environment, in the median, up to callTimeoutSeconds, {made_up.max_s:g}; pass recorded ones with "
            f"--from, or with {columns}."
        )
    episodes = inputs.trace.lengths.episodes if inputs.trace is not None else ()
    if not episodes:
        return (
            "Episodes: the lengths have no turns, so the time of environments is left out; pass recorded ones with "
            f"--from, or with {columns}."
        )
    seconds = sorted(one.environment_s for one in episodes)
    return (
        f"Episodes: {fmean(one.num_turns for one in episodes):.1f} turns in the mean; their environments took "
        f"{fmt.duration(median(seconds))} in the median, {fmt.duration(seconds[-1])} at most."
    )


def trace_notes(trace: LengthTrace, spec: RLJobSpec) -> Iterator[str]:
    """Yield what was done to a trace."""
    if trace.num_clipped:
        cut = f"{fmt.count(trace.num_clipped, 'response')} of {trace.num_responses:,}"
        yield f"{cut} cut at maxResponseTokens, {spec.algorithm.max_response_tokens:,}, where the job would cut them."
    if not trace.has_prompt_ids:
        size = spec.algorithm.responses_per_prompt
        yield f"The trace has no column {PROMPT}: every {size} rows count as the responses of one prompt."
    if trace.ignored_columns:
        yield f"Only {', '.join(COLUMNS)} are read, not {', '.join(trace.ignored_columns)}."


def source_notes(source: RecordedJob) -> Iterator[str]:
    """Yield where recorded lengths come from, and what is not known of them."""
    lengths = source.lengths
    measured = "no profile: costs are those of the model and the GPU" if source.profile is None else "its profile"
    yield f"From {source.job}: {fmt.count(lengths.num_rounds, 'round')}, and {measured}."
    if lengths.num_cut:
        yield (
            f"{fmt.share(lengths.cut_share)} of the responses that {source.job} started were aborted for good, mostly "
            "long ones: the lengths here are shorter than what the model wants to write. A job with rollout.strategy "
            "Synchronous records them all."
        )


def _hardware_notes(inputs: Inputs) -> Iterator[str]:
    workers, gpu = inputs.spec.workers, inputs.gpu.name
    if inputs.assumes_gpu:
        yield f"GPUs: {gpu}, for want of --gpu-type."
    if workers.gpus_per_pod == 0:
        yield f"Worker pods without GPUs are simulated with one {gpu} each."
    elif not workers.has_accelerator:
        yield f"GPUs of the kind {workers.gpu_resource_name} are pretended; they are simulated as {gpu}."


def _reward_notes(reward: Reward) -> Iterator[str]:
    if reward.most_pods > reward.pods:
        yield f"reward.maxPods is not simulated: the job has {fmt.count(reward.pods, 'reward pod')} throughout."
    bounded = [one.name for one in reward.functions if one.max_concurrency is not None]
    if bounded:
        names = ", ".join(bounded)
        yield f"reward.functions.maxConcurrency is not simulated ({names}): all reward workers score at once."
