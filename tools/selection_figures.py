"""Write the table of `explanation/selection-bias.md`: what rounds select if deferred draws get new seeds."""

import heapq
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Final

from longshore.api.rollout import Rollout, Strategy
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.round import ResponseFinished, ResponseId
from longshore.policy.round_policy import BatchShape
from longshore.policy.strategies import round_policy
from tools.marked import replace

PAGE: Final = Path(__file__).parents[1] / "docs" / "explanation" / "selection-bias.md"
SHAPE: Final = BatchShape(num_prompts=64, num_responses=8)
NUM_ROUNDS: Final = 240
_MEDIAN_TOKENS: Final = 2000
_MAX_TOKENS: Final = 16_384
_ENGINES: Final = range(4)
"""Numbers of the engines, which hold twice as many responses as a step has."""
_LONG_SHARE: Final = 0.05
"""Share of the responses of synchronous rounds that count as long."""
_SPREADS: Final = {
    "on chance alone": (0.0, 1.0),
    "on prompt and chance alike": (0.7, 0.7),
    "mostly on the prompt": (1.0, 0.3),
}
"""Standard deviations of the logarithm, of prompts and of responses to the same one."""
_HEAD: Final = (
    "| lengths depend | strategy | mean length, new seeds | long ones, new seeds | mean length, same seeds "
    "| long ones, same seeds |\n|---|---|---|---|---|---|\n"
)


@dataclass
class Lengths:
    """Lognormal lengths; with `renews`, a draw that is sampled again has others."""

    prompt_spread: float
    response_spread: float
    renews: bool = False
    attempts: Counter[Draw] = field(default_factory=Counter)

    def tokens(self, response: ResponseId) -> int:
        """Return the length of a response in the present round."""
        attempt = self.attempts[response.draw] if self.renews else 0
        prompt = random.Random(f"prompt {response.draw}").gauss(0.0, self.prompt_spread)
        own = random.Random(f"{response} {attempt}").gauss(0.0, self.response_spread)
        return max(1, min(_MAX_TOKENS, round(_MEDIAN_TOKENS * math.exp(prompt + own))))


def trained_tokens(strategy: Strategy, lengths: Lengths, num_rounds: int = NUM_ROUNDS) -> list[int]:
    """Return the lengths of all responses that are trained on; a step of the engines takes always the same time."""
    policy = round_policy(Rollout(strategy=strategy), SHAPE, DrawCursor(1 << 16, seed=1))
    trained = []
    for _ in range(num_rounds):
        decision = policy.start_round(engines=_ENGINES).decision
        running: list[tuple[int, ResponseId]] = []
        aborted: set[ResponseId] = set()
        step = 0
        while True:
            for response in decision.launch:
                heapq.heappush(running, (step + lengths.tokens(response), response))
            aborted.update(decision.abort)
            if decision.has_batch:
                break
            step, response = heapq.heappop(running)
            finished = [] if response in aborted else [ResponseFinished(response, step)]
            decision = policy.responses_finished(finished)
        end = policy.end_round()
        for group in end.accepted:
            trained += [lengths.tokens(ResponseId(group.draw, index)) for index in group.responses]
        lengths.attempts.update(end.deferred)
    return trained


def selection_table() -> None:
    """Run all strategies and write the table; takes a minute or two."""
    replace(PAGE, "selection", _HEAD + "".join(row for name in _SPREADS for row in _rows(name)))


def _rows(name: str) -> list[str]:
    plain = trained_tokens(Strategy.SYNCHRONOUS, Lengths(*_SPREADS[name]))
    limit = sorted(plain)[round(len(plain) * (1 - _LONG_SHARE))]
    found = []
    for strategy in (Strategy.TAIL_BATCHING, Strategy.REORDER_ROLLOUT):
        cells = [name, f"`{strategy}`"]
        for renews in (True, False):
            tokens = trained_tokens(strategy, Lengths(*_SPREADS[name], renews=renews))
            share = fmean(one >= limit for one in tokens) / fmean(one >= limit for one in plain)
            cells += [f"{fmean(tokens) / fmean(plain):.2f}", f"{share:.2f}"]
        found.append(f"| {' | '.join(cells)} |\n")
    return found


if __name__ == "__main__":
    selection_table()
