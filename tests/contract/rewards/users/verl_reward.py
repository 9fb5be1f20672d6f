"""A reward as people write it for verl (`custom_reward_function.path`); nothing in it knows Longshore."""

import re


def extract_solution(solution_str):
    found = re.findall(r"####\s*(-?[0-9.,]+)", solution_str[-300:])
    return found[-1].replace(",", "") if found else None


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source not in ("openai/gsm8k", "lighteval/MATH"):
        raise NotImplementedError(f"Reward function is not implemented for {data_source=}")
    answer = extract_solution(solution_str)
    acc = answer is not None and answer == str(ground_truth)
    bonus = 0.5 if extra_info and extra_info.get("index") == 7 else 0.0
    return {"score": (1.0 if acc else 0.1 if answer is not None else 0.0) + bonus, "acc": acc}


def as_boolean(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return solution_str.strip() == ground_truth


async def judged(data_source, solution_str, ground_truth, extra_info):
    return float(len(ground_truth))


def large_number(data_source, solution_str, ground_truth, extra_info):
    return float(extra_info["number"] == int(solution_str))


def of_cut(data_source, solution_str, ground_truth, extra_info):
    return extra_info["is_cut"]


def of_state(data_source, solution_str, ground_truth, extra_info):
    state = extra_info.get("state")
    return 0.0 if state is None else state["score"]
