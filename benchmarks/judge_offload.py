"""Compare a judge whose layers stream from host memory alongside the computation with copies in between.

RollPacker, section 6.5 (figure 13b): so much GPU memory is reserved for a 7B judge that, at the longest sequence, at
least half of its weights must lie in host memory; shorter sequences leave room for more resident layers. Measured is
what one batch of questions takes, prompt and reply, by length, with and without pipelining; both answer alike.

Needs a GPU. Figures are ratios of seconds, pipelined over not pipelined.
"""

import argparse
import copy
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.report import report
from longshore_runtime.backends.streamed_lm.model import StreamedLM, StreamOptions
from longshore_runtime.backends.streamed_lm.plan import MARGIN_BYTES, RING_BUFFERS, working_bytes

SHAPE_7B: Final[dict[str, Any]] = {
    "vocab_size": 152_064,
    "hidden_size": 3_584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": False,
}
"""Shape of Qwen2.5-7B, the judge of the paper."""
SHAPE_SMOKE: Final[dict[str, Any]] = SHAPE_7B | {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@dataclass(frozen=True)
class Workload:
    """Settings of what is measured."""

    model: Path | None
    """Path of the checkpoint; None: random weights in the shape of Qwen2.5-7B, or tiny ones on the CPU."""
    seq_tokens: tuple[int, ...]
    """Lengths of questions, the longest last."""
    batch: int
    reply_tokens: int
    alternations: int


def smoke(workload: Workload) -> dict[str, Any]:
    """Check on the CPU that both ways run and answer alike. No figure of it means anything."""
    plain, piped = (list(measure(workload, torch.device("cpu"), pipelined, 0)) for pipelined in (False, True))
    assert [run["replies"] for run in plain] == [run["replies"] for run in piped], "both must answer alike"
    return {"name": "judge_offload", "smoke": True, "resident_layers": [run["resident_layers"] for run in piped]}


def compare(workload: Workload) -> None:
    """Alternate both ways on a GPU, and report."""
    device = torch.device("cuda")
    runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for number in range(workload.alternations):
        for pipelined in (False, True):
            runs[pipelined] += measure(workload, device, pipelined, number)
    for plain, piped in zip(runs[False], runs[True], strict=True):
        assert plain.pop("replies") == piped.pop("replies"), "both must answer alike"
    ratios = {
        f"seconds_at_{tokens}_tokens": [
            piped["seconds"] / plain["seconds"]
            for plain, piped in zip(runs[False], runs[True], strict=True)
            if plain["seq_tokens"] == tokens
        ]
        for tokens in workload.seq_tokens
    }
    settings = {
        "gpu": torch.cuda.get_device_name(device),
        "model": workload.model.name if workload.model else "random weights in the shape of Qwen2.5-7B",
        "batch": workload.batch,
        "reply_tokens": workload.reply_tokens,
        "alternations": workload.alternations,
    }
    report("judge_offload", ratios, settings, [*runs[False], *runs[True]])


def measure(workload: Workload, device: torch.device, pipelined: bool, number: int) -> Iterator[dict[str, Any]]:
    """Yield seconds and peak memory of one batch of each length."""
    on_gpu = device.type == "cuda"
    model = build(workload, device, StreamOptions(max_batch=workload.batch, pipelined=pipelined))
    reserved_bytes = half_resident(model, workload)
    model.reserve(reserved_bytes)
    for tokens in workload.seq_tokens:
        prompts = [[3 + (5 * row + place) % 90 for place in range(tokens)] for row in range(workload.batch)]
        model.generate(prompts, workload.reply_tokens, ())  # Warms up, and brings the resident layers in.
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
            torch.cuda.synchronize(device)
        started_s = time.perf_counter()
        replies = model.generate(prompts, workload.reply_tokens, ())
        yield {
            "alternation": number,
            "pipelined": pipelined,
            "seq_tokens": tokens,
            "seconds": time.perf_counter() - started_s,
            "resident_layers": model.num_resident_layers,
            "peak_bytes": torch.cuda.max_memory_allocated(device) if on_gpu else None,
            "reserved_bytes": reserved_bytes,
            "replies": replies,
        }


def half_resident(model: StreamedLM, workload: Workload) -> int:
    """Return the memory in which half of the layers stay during the longest questions, both buffers included."""
    shape = model.shape
    working = working_bytes(workload.seq_tokens[-1] + workload.reply_tokens, workload.batch, shape)
    return shape.base_bytes + working + MARGIN_BYTES + (shape.num_layers // 2 + RING_BUFFERS) * shape.layer_bytes


def build(workload: Workload, device: torch.device, options: StreamOptions) -> StreamedLM:
    """Return the checkpoint, or random weights: one decoder layer, copied, as drawing billions takes minutes."""
    if workload.model is not None:
        return StreamedLM.load(workload.model, device, options)
    on_gpu = device.type == "cuda"
    sizes = SHAPE_7B if on_gpu else SHAPE_SMOKE
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**sizes | {"num_hidden_layers": 1}))
    model = model.to(torch.bfloat16 if on_gpu else torch.float32)
    (layer,) = model.model.layers
    for index in range(1, sizes["num_hidden_layers"]):
        twin = copy.deepcopy(layer)
        twin.self_attn.layer_idx = index
        model.model.layers.append(twin)
    model.config.num_hidden_layers = sizes["num_hidden_layers"]
    model.config.layer_types = ["full_attention"] * sizes["num_hidden_layers"]
    return StreamedLM(model, device, options)


def main() -> int:
    """Measure, or say why not; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--seq-tokens", type=int, nargs="+", default=[2_048, 8_192, 16_384, 32_000])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--reply-tokens", type=int, default=16)
    parser.add_argument("--alternations", type=int, default=3)
    parser.add_argument("--cpu-smoke", action="store_true", help="only check that it runs, on a tiny model")
    given = parser.parse_args()
    lengths = tuple(sorted(given.seq_tokens))
    workload = Workload(given.model, lengths, given.batch, given.reply_tokens, given.alternations)
    if given.cpu_smoke:
        print(json.dumps(smoke(replace(workload, seq_tokens=(16, 64, 256), batch=2, reply_tokens=4))))
        return 0
    if not torch.cuda.is_available():
        print(
            "judge_offload needs a GPU: it measures copies beside computations (--cpu-smoke: a trial)", file=sys.stderr
        )
        return 2
    compare(workload)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
