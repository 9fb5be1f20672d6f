"""Publish weights to vLLM and sample from them, as an engine of a job does: an image in which this works can run jobs.

    docker run --rm --interactive --entrypoint python IMAGE - < images/smoke.py

On GPUs: `docker run --gpus 1 ...`, with `gpu` as an argument of the program (`python - gpu`).
"""

import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

from longshore.api.rollout import EngineSettings as EngineOptions
from longshore_runtime.backends.engine_protocol import Request, load_weights
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.backends.engines import create_engine
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.weights.buckets import MAX_BUCKET_BYTES, buckets

MAX_TOKENS = 16


def main() -> None:
    """Exit with an error unless every response has its tokens."""
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory)
        build_tiny_model(model, seed=0)
        options = EngineOptions(max_num_seqs=8, kv_cache="16Mi")
        engine = create_engine(EngineSpec(options, 256, accelerator="gpu" in sys.argv), model)
        weights = load_file(model / "model.safetensors")
        load_weights(engine, buckets(weights.items(), MAX_BUCKET_BYTES), policy_version=0)
        engine.add([Request(str(n), (10, 11, 12), MAX_TOKENS, 1.0, n, (), ignores_end=True) for n in range(4)])
        responses = []
        while engine.has_work():
            responses += engine.step()
    num_tokens = [len(response.tokens) for response in responses]
    assert num_tokens == [MAX_TOKENS] * 4, f"vLLM sampled {num_tokens} tokens"
    sys.stdout.write(f"vLLM sampled {sum(num_tokens)} tokens\n")


if __name__ == "__main__":
    main()
