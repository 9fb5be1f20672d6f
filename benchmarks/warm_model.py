"""Models that the runs of a benchmark begin with: the built-in one after supervised steps, outside of a job."""

from pathlib import Path
from tempfile import TemporaryDirectory

from longshore.api.algorithm import Algorithm
from longshore.api.model import BuiltinTask
from longshore.api.objectives.aggregation import Aggregation
from longshore.api.training import TrainerSettings
from longshore.api.warm_start import WarmStart


def write_warm_model(directory: Path, task: BuiltinTask, num_steps: int, seed: int, *, tied: bool = False) -> None:
    """Write the built-in model after the warm start of the quickstart, with `num_steps` steps."""
    from longshore_runtime.backends.tiny_model import build_tiny_model, build_tokenizer
    from longshore_runtime.backends.torch_trainer import TorchTrainer
    from longshore_runtime.session.warm_start import imitated, trainer_spec
    from longshore_runtime.tasks.curriculum import demonstrated
    from longshore_runtime.trainer.group import step_denominator

    settings = WarmStart(steps=num_steps, learning_rate=4e-3, aggregation=Aggregation.SEQUENCE_MEAN)
    algorithm = Algorithm(steps=1, prompts_per_step=2, responses_per_prompt=2, max_response_tokens=1, seed=seed)
    options = trainer_spec(algorithm, settings, TrainerSettings(max_tokens_per_micro_batch=2048)).options
    of_step = demonstrated(task, settings, seed, build_tokenizer())
    with TemporaryDirectory() as untrained:
        build_tiny_model(Path(untrained), seed, tied=tied)
        trainer = TorchTrainer(Path(untrained), options)
        for step in range(1, num_steps + 1):
            samples = imitated(step, of_step(step))
            trainer.accumulate(samples)
            trainer.update(step_denominator(samples, options))
        trainer.begin_save(directory)()
