"""Draw the figures of the documentation with the policies of the core: `make figures`."""

import random
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes

from longshore.api.rollout import Rollout, Strategy
from longshore.api.round_status import RoundKind
from longshore.policy.draws import DrawCursor
from longshore.policy.round import Decision, ResponseFinished, ResponseId
from longshore.policy.round_policy import BatchShape
from longshore.policy.strategies import round_policy
from tools.bench_figures import bench_figures
from tools.paper_figures import paper_figures
from tools.selection_figures import selection_table

_ASSETS: Final = Path(__file__).parents[1] / "docs" / "assets"
_SHAPE: Final = BatchShape(num_prompts=16, num_responses=8)
_NUM_ROUNDS: Final = 10
_COLOURS: Final = {RoundKind.FULL: "#8a8f98", RoundKind.SHORT: "#1b7f79", RoundKind.LONG: "#d1652c"}

Curve = list[tuple[int, int]]
"""Points (decode step, responses that run from then on)."""


def response_tokens(response: ResponseId) -> int:
    """Return a long-tailed length that belongs mostly to the prompt, as lengths of reasoning do."""
    prompt = random.Random(f"prompt {response.draw}").lognormvariate(4.0, 1.0)
    return max(1, min(2000, round(prompt * random.Random(str(response)).lognormvariate(0.0, 0.3))))


def rollouts(strategy: Strategy) -> list[tuple[RoundKind, Curve]]:
    """Run ten rounds on engines whose step takes the same time whatever the batch."""
    policy = round_policy(Rollout(strategy=strategy), _SHAPE, DrawCursor(4096, seed=1))
    rounds = []
    for _ in range(_NUM_ROUNDS):
        start = policy.start_round()
        running = _after({}, start.decision)
        curve, step, decision = [(0, len(running))], 0, start.decision
        while not decision.has_batch:
            step = min(running.values())
            ended = [response for response, end in running.items() if end == step]
            decision = policy.responses_finished([ResponseFinished(response, step) for response in ended])
            running = _after({r: end for r, end in running.items() if end != step}, decision)
            curve.append((step, len(running)))
        policy.end_round()
        rounds.append((start.kind, curve))
    return rounds


def _after(running: dict[ResponseId, int], decision: Decision) -> dict[ResponseId, int]:
    aborted = set(decision.abort)
    kept = {response: end for response, end in running.items() if response not in aborted}
    return kept | {response: response_tokens(response) for response in decision.launch}


def _draw(axes: Axes, rounds: list[tuple[RoundKind, Curve]], title: str) -> None:
    offset, num_steps = 0, sum(curve[-1][0] for _, curve in rounds)
    for kind, curve in rounds:
        shown = _thinned(curve, num_steps)
        steps = [offset + step for step, _ in shown]
        counts = [count for _, count in shown]
        axes.fill([offset, *steps, steps[-1]], [0, *counts, 0], color=_COLOURS[kind], linewidth=0)
        offset = steps[-1]
        axes.axvline(offset, color="white", linewidth=1)
    axes.set_title(f"{title}: {_NUM_ROUNDS} rounds in {offset:,} decode steps", loc="left", fontsize=10)
    axes.set_ylabel("running responses", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _thinned(curve: Curve, num_steps: int) -> Curve:
    """Leave out points that lie so near to the one before that they would only make the file larger."""
    shown = curve[:1]
    for step, count in curve[1:-1]:
        if (step - shown[-1][0]) / num_steps + abs(shown[-1][1] - count) / 800 >= 0.008:
            shown.append((step, count))
    return [*shown, curve[-1]]


def tail_batching() -> None:
    """Draw `tail-batching.svg`: the same ten batches, synchronously and with tail batching."""
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, sharey=True, figsize=(9, 4.2))
    _draw(above, rollouts(Strategy.SYNCHRONOUS), "Synchronous")
    _draw(below, rollouts(Strategy.TAIL_BATCHING), "Tail batching")
    below.set_xlabel("decode steps (each takes about the same time, however few responses run)", fontsize=9)
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=_COLOURS[kind]) for kind in (RoundKind.SHORT, RoundKind.LONG)]
    below.legend(handles, ["short round", "long round"], frameon=False, fontsize=9, loc="upper right")
    figure.tight_layout()
    figure.savefig(_ASSETS / "tail-batching.svg", metadata={"Date": None})


def main() -> None:
    """Draw all figures."""
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "longshore"
    _ASSETS.mkdir(exist_ok=True)
    tail_batching()
    bench_figures()
    paper_figures()
    selection_table()


if __name__ == "__main__":
    main()
