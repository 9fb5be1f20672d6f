"""An environment for verifiers before 0.4: guess a number, which is higher or lower."""

import verifiers as vf
from datasets import Dataset


class Higher(vf.MultiTurnEnv):
    @vf.stop
    async def is_won(self, state):
        return bool(state["trajectory"]) and self._guess(state) == int(state["answer"])

    async def env_response(self, messages, state, **kwargs):
        hint = "higher" if self._guess(state) < int(state["answer"]) else "lower"
        return [{"role": "user", "content": hint}]

    def _guess(self, state):
        return int(state["trajectory"][-1]["completion"][-1]["content"])


def load_environment(most=9, **kwargs):
    rows = [{"question": f"0 to {most}?", "answer": str(secret)} for secret in range(most + 1)]

    async def won(completion, answer):
        return float(completion[-1]["content"] == answer)

    return Higher(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[won]), max_turns=8, **kwargs)
