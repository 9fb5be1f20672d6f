"""Create the trainer that a job asks for."""

from pathlib import Path

from longshore.api.training import TrainerBackend
from longshore_runtime.backends.fake_trainer import FakeTrainer
from longshore_runtime.backends.trainer_limits import loading_mistake
from longshore_runtime.backends.trainer_protocol import Trainer
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.backends.work_meter import WorkMeter
from longshore_runtime.backends.world import World
from longshore_runtime.errors import UserError
from longshore_runtime.process.large_imports import without_collections


def create_trainer(
    spec: TrainerSpec,
    directory: Path,
    name: str,
    world: World,
    meter: WorkMeter | None = None,
    reference: Path | None = None,
    critic: Path | None = None,
) -> Trainer:
    """Join the world as one rank of the trainer of a Hugging Face directory, which tells `meter` how far it is.

    Args:
        spec: settings of the trainer.
        directory: directory of the model.
        name: name of the model in messages.
        world: ranks of all replicas.
        meter: what is told of progress.
        reference: directory of the frozen model of the objective; None: the same as that of the trainer.
        critic: directory that the critic begins as; None: there is none.

    Raises:
        UserError: the model, called `name`, cannot be trained so.
    """
    if spec.backend is TrainerBackend.FAKE:
        return FakeTrainer(directory, spec.options, world, spec.sizes, meter)
    try:
        return _of_model(spec, directory, world, meter, reference, critic)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(loading_mistake(error, name)) from error


def _of_model(
    spec: TrainerSpec,
    directory: Path,
    world: World,
    meter: WorkMeter | None,
    reference: Path | None,
    critic: Path | None,
) -> Trainer:
    if spec.backend is TrainerBackend.MEGATRON:
        with without_collections():
            from longshore_runtime.backends.megatron.trainer import MegatronTrainer

        return MegatronTrainer(directory, spec.options, world, spec.sizes, meter=meter, reference=reference)
    with without_collections():
        from longshore_runtime.backends.critic import TrainerWithCritic
        from longshore_runtime.backends.torch_trainer import TorchTrainer

    if critic is not None:
        return TrainerWithCritic(directory, critic, spec.options, world, spec.sizes, meter)
    return TorchTrainer(directory, spec.options, world, spec.sizes, meter, reference)
