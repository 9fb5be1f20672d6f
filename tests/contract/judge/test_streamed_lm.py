"""A streamed model answers exactly as a resident one, wherever its layers are and however sequences are batched."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from longshore_runtime.backends.streamed_lm import device_memory
from longshore_runtime.backends.streamed_lm.model import StreamedLM, StreamOptions
from longshore_runtime.backends.streamed_lm.plan import RING_BUFFERS, DoesNotFit, working_bytes
from tests.contract.judge.conftest import Checkpoints
from tests.contract.judge.live_bytes import LiveBytes
from tests.contract.judge.models import NUM_LAYERS, build, reservation

CPU = torch.device("cpu")
PROMPTS = [[5, 6, 7, 8, 9], [40, 41, 42], list(range(50, 62)), [99]]
CONTINUATIONS = [[1, 2, 3], [4], [], [7, 8, 9, 10, 11]]
MAX_TOKENS = 12
LONGEST = 12 + MAX_TOKENS


def streamed(checkpoint: Path, num_resident: int, pipelined: bool = True, max_batch: int = 32) -> StreamedLM:
    """With memory for so many resident layers while all PROMPTS run together."""
    shape = StreamedLM.load(checkpoint, CPU, StreamOptions()).shape
    reserved = reservation(shape, LONGEST, len(PROMPTS), num_resident, ring=2 if pipelined else 1)
    return StreamedLM.load(checkpoint, CPU, StreamOptions(reserved, max_batch, pipelined))


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("num_resident", [0, 1, NUM_LAYERS - 3])
def test_replies_and_scores_equal_those_of_the_resident_model_bit_by_bit(
    checkpoint: Path, num_resident: int, pipelined: bool
) -> None:
    resident, offloaded = (
        StreamedLM.load(checkpoint, CPU, StreamOptions()),
        streamed(checkpoint, num_resident, pipelined),
    )
    assert offloaded.generate(PROMPTS, MAX_TOKENS, ()) == resident.generate(PROMPTS, MAX_TOKENS, ())
    assert (resident.num_resident_layers, offloaded.num_resident_layers) == (NUM_LAYERS, num_resident)
    assert offloaded.log_probs(PROMPTS, CONTINUATIONS) == resident.log_probs(PROMPTS, CONTINUATIONS)


def test_replies_equal_those_of_transformers_one_by_one(checkpoint: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    expected = []
    for prompt in PROMPTS:
        tokens = torch.tensor([prompt])
        for _ in range(MAX_TOKENS):
            tokens = torch.cat([tokens, reference(tokens).logits[:, -1:].argmax(-1)], dim=1)
        expected.append(tokens[0, len(prompt) :].tolist())
    assert streamed(checkpoint, 2).generate(PROMPTS, MAX_TOKENS, ()) == expected


def test_scores_equal_those_of_transformers_one_by_one(checkpoint: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    scores = streamed(checkpoint, 2).log_probs(PROMPTS, CONTINUATIONS)
    for prompt, continuation, actual in zip(PROMPTS, CONTINUATIONS, scores, strict=True):
        with torch.no_grad():
            rows = reference(torch.tensor([prompt + continuation])).logits[0].log_softmax(-1)
        expected = [rows[len(prompt) - 1 + place, token].item() for place, token in enumerate(continuation)]
        assert actual == pytest.approx(expected, abs=1e-5)


def test_a_reply_does_not_depend_on_what_runs_beside_it(checkpoint: Path) -> None:
    together = streamed(checkpoint, 2).generate(PROMPTS, MAX_TOKENS, ())
    assert streamed(checkpoint, 2, max_batch=1).generate(PROMPTS, MAX_TOKENS, ()) == together
    assert streamed(checkpoint, 2, max_batch=3).generate(PROMPTS, MAX_TOKENS, ()) == together


def test_a_stop_token_ends_its_reply_and_no_other(checkpoint: Path) -> None:
    model = streamed(checkpoint, 2)
    free = model.generate(PROMPTS, MAX_TOKENS, ())
    stop = free[0][4]
    stopped = model.generate(PROMPTS, MAX_TOKENS, {stop})
    assert stopped == [reply[: reply.index(stop)] if stop in reply else reply for reply in free]


def test_resident_layers_follow_the_length_and_results_do_not(checkpoints: Checkpoints) -> None:
    checkpoint = checkpoints("qwen3")
    resident = StreamedLM.load(checkpoint, CPU, StreamOptions())
    model = StreamedLM.load(checkpoint, CPU, StreamOptions(reservation(resident.shape, 60, 1, num_resident=3)))
    counts = []
    for num_tokens in (57, 90, 20, 57):
        prompt = [3 + place % 100 for place in range(num_tokens)]
        assert model.generate([prompt], 3, ()) == resident.generate([prompt], 3, ())
        counts.append(model.num_resident_layers)
    assert counts == [3, 0, 7, 3]


def test_resident_layers_follow_free_memory_and_what_the_model_holds_counts_as_free(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = StreamedLM.load(checkpoints("qwen3"), CPU, StreamOptions())
    device_bytes = [reservation(model.shape, 60, 1, num_resident) for num_resident in (3, 3, 1, 4)]

    def free_bytes(device: torch.device) -> int:
        ring = RING_BUFFERS if model.num_resident_layers < NUM_LAYERS else 0
        held_bytes = model.shape.base_bytes + (model.num_resident_layers + ring) * model.shape.layer_bytes
        return device_bytes[0] - held_bytes

    monkeypatch.setattr(device_memory, "free_bytes", free_bytes)
    counts = []
    while device_bytes:
        model.generate([[7] * 57], 3, ())
        counts.append(model.num_resident_layers)
        device_bytes.pop(0)
    assert counts == [3, 3, 1, 4]


def test_a_prompt_that_does_not_fit_is_refused(checkpoints: Checkpoints) -> None:
    model = streamed(checkpoints("llama"), 0)
    with pytest.raises(DoesNotFit, match=r"1 x 2003 tokens need .* are reserved"):
        model.generate([[5] * 2_000], 3, ())


def test_nothing_asked_is_nothing_answered(checkpoints: Checkpoints) -> None:
    model = streamed(checkpoints("llama"), 0)
    assert (model.generate([], 3, ()), model.log_probs([], [])) == ([], [])


def test_a_model_with_sliding_windows_is_refused(tmp_path: Path) -> None:
    layer_types = ["full_attention"] * 6 + ["sliding_attention"]
    checkpoint = build(tmp_path, "qwen2", layer_types=layer_types, sliding_window=4, use_sliding_window=True)
    with pytest.raises(ValueError, match="it has sliding-window attention"):
        StreamedLM.load(checkpoint, CPU, StreamOptions())


def test_an_architecture_that_was_not_looked_at_is_refused() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=10))
    with pytest.raises(ValueError, match=r"its type is 'gpt2': a streamed model is one of llama, qwen2, qwen3"):
        StreamedLM(model, CPU, StreamOptions())


@pytest.mark.parametrize(("num_prompts", "prompt_tokens"), [(1, 1_500), (8, 200)])
def test_live_memory_while_prompts_are_read_is_what_the_plan_counts_or_little_less(
    checkpoint: Path, num_prompts: int, prompt_tokens: int
) -> None:
    model = StreamedLM.load(checkpoint, CPU, StreamOptions())
    planned = working_bytes(prompt_tokens + 2, num_prompts, model.shape)
    assert 0.7 * planned < peak_bytes(model, [[7] * prompt_tokens] * num_prompts, 2) <= planned


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_holds_where_the_mlp_is_the_widest(tmp_path: Path, dtype: torch.dtype) -> None:
    checkpoint = build(tmp_path, "qwen2", intermediate_size=512)
    model = StreamedLM(AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype), CPU, StreamOptions())
    planned = working_bytes(1_002, 1, model.shape)
    assert 0.7 * planned < peak_bytes(model, [[7] * 1_000], 2) <= planned


def test_long_replies_to_short_prompts_stay_within_the_plan(checkpoint: Path) -> None:
    model = StreamedLM.load(checkpoint, CPU, StreamOptions())
    peak = peak_bytes(model, [[7] * 8, [8] * 5] * 8, 100)
    assert peak <= working_bytes(108, 16, model.shape)


def test_scores_of_long_continuations_stay_within_the_plan(checkpoint: Path) -> None:
    model = StreamedLM.load(checkpoint, CPU, StreamOptions())
    model.log_probs([[7]], [[8]])
    with LiveBytes() as live:
        model.log_probs([[7] * 8] * 2, [[8] * 900] * 2)
    assert live.peak_bytes <= working_bytes(908, 2, model.shape)


def peak_bytes(model: StreamedLM, prompts: list[list[int]], max_tokens: int) -> int:
    """The most memory of tensors at one time, weights aside."""
    model.generate([[7]], 1, ())  # Brings the layers in.
    with LiveBytes() as live:
        model.generate(prompts, max_tokens, ())
    peak: int = live.peak_bytes
    return peak
