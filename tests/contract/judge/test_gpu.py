"""What only a GPU can show: copies beside computations change no result, and memory stays within the plan."""

from pathlib import Path

import pytest
import torch

from longshore_runtime.backends.streamed_lm import device_memory
from longshore_runtime.backends.streamed_lm.model import StreamedLM, StreamOptions
from longshore_runtime.backends.streamed_lm.plan import RING_BUFFERS
from tests.contract.judge.models import NUM_LAYERS, build, reservation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

PROMPTS = [[3 + (7 * row + place) % 100 for place in range(40 + 60 * row)] for row in range(4)]
CONTINUATIONS = [[5 + row] * 20 for row in range(4)]
MAX_TOKENS = 24
LONGEST = 40 + 60 * 3 + MAX_TOKENS


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers of 42 MB in bf16: copies take long enough to be overtaken by computations that do not wait for them."""
    directory = tmp_path_factory.mktemp("wide")
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4}
    return build(directory, "qwen2", hidden_size=1_024, intermediate_size=6_144, **heads)


def streamed(checkpoint: Path, num_resident: int, pipelined: bool) -> StreamedLM:
    device = torch.device("cuda")
    shape = StreamedLM.load(checkpoint, device, StreamOptions()).shape
    reserved = reservation(shape, LONGEST, len(PROMPTS), num_resident, ring=2 if pipelined else 1)
    return StreamedLM.load(checkpoint, device, StreamOptions(reserved, pipelined=pipelined))


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("num_resident", [0, 3])
def test_replies_and_scores_equal_those_of_the_resident_model(
    checkpoint: Path, num_resident: int, pipelined: bool
) -> None:
    resident = StreamedLM.load(checkpoint, torch.device("cuda"), StreamOptions())
    offloaded = streamed(checkpoint, num_resident, pipelined)
    for _ in range(3):
        assert offloaded.generate(PROMPTS, MAX_TOKENS, ()) == resident.generate(PROMPTS, MAX_TOKENS, ())
        assert offloaded.log_probs(PROMPTS, CONTINUATIONS) == resident.log_probs(PROMPTS, CONTINUATIONS)
    assert (resident.num_resident_layers, offloaded.num_resident_layers) == (NUM_LAYERS, num_resident)


@pytest.mark.parametrize("prompt_tokens", [512, 4_096, 16_384])
def test_peak_memory_stays_within_the_reservation(checkpoint: Path, prompt_tokens: int) -> None:
    device = torch.device("cuda")
    shape = StreamedLM.load(checkpoint, device, StreamOptions()).shape
    reserved = reservation(shape, prompt_tokens + 8, 1, num_resident=1)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model = StreamedLM.load(checkpoint, device, StreamOptions(reserved))
    model.generate([[7] * prompt_tokens], 8, ())
    assert model.num_resident_layers == 1
    assert torch.cuda.max_memory_allocated() - before <= reserved


def test_memory_that_others_take_leaves_fewer_resident_layers_until_they_free_it(checkpoint: Path) -> None:
    device = torch.device("cuda")
    model = streamed(checkpoint, num_resident=3, pipelined=True)
    replies = model.generate(PROMPTS, MAX_TOKENS, ())
    held = model.shape.base_bytes + (3 + RING_BUFFERS) * model.shape.layer_bytes
    for_one = reservation(model.shape, LONGEST, len(PROMPTS), num_resident=1) + model.shape.layer_bytes // 2
    torch.cuda.empty_cache()
    others = torch.empty(device_memory.free_bytes(device) - (for_one - held), dtype=torch.uint8, device=device)
    assert (model.generate(PROMPTS, MAX_TOKENS, ()), model.num_resident_layers) == (replies, 1)
    del others
    torch.cuda.empty_cache()
    assert (model.generate(PROMPTS, MAX_TOKENS, ()), model.num_resident_layers) == (replies, 3)


def test_a_model_that_is_given_up_writes_no_more_into_memory_that_others_got(checkpoint: Path) -> None:
    """At the end of a pass the first layers of the next one are being copied: no tensor made then lies below them."""
    device = torch.device("cuda")
    for _ in range(5):
        model = streamed(checkpoint, num_resident=0, pipelined=True)
        model.generate(PROMPTS, 2, ())
        num_elements = model.shape.layer_bytes // 2
        del model
        ones = [torch.ones(num_elements, dtype=torch.bfloat16, device=device) for _ in range(4)]
        torch.cuda.synchronize()
        assert all(bool((one == 1).all()) for one in ones)
