"""Write what the simulator predicts into the headers of manifests: `make predictions`.

A header that predicts has a line `# Predicted: ...`, and below it the command that a reader can repeat:
`longshore simulate manifests/NAME.yaml --gpu-type ... --steps ...`.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from longshore.api.rollout import Strategy
from longshore.api.spec import RLJobSpec
from longshore.sim.result import SimResult
from longshore.sim.simulate import simulate
from longshore_cli.simulate.inputs import Inputs, SimulateOptions, read
from longshore_cli.simulate.job import sim_job
from longshore_cli.simulate.variants import with_strategy

MANIFESTS: Final = Path(__file__).parents[1] / "manifests"
_COMMAND: Final = re.compile(r"^#   (longshore simulate .*)$", re.MULTILINE)
_LINE: Final = re.compile(r"^# Predicted:.*$", re.MULTILINE)


@dataclass(frozen=True)
class HeaderPrediction:
    """Prediction that a header states."""

    step_s: float
    num_gpus: int
    gpu_hours: float
    """GPU hours of all steps of the job."""
    speedup: float
    """Speedup over the same job with strategy Synchronous."""

    def line(self, num_steps: int) -> str:
        """Return the prediction as a line of a header."""
        return (
            f"# Predicted: {self.step_s:,.1f} s a step on {self.num_gpus} GPUs, {self.gpu_hours:,.1f} GPU hours for "
            f"{num_steps:,} steps; {self.speedup:.2f} times as fast as Synchronous."
        )


def predicting() -> list[Path]:
    """Return the manifests with a prediction."""
    return [path for path in sorted(MANIFESTS.glob("*.yaml")) if _LINE.search(path.read_text(encoding="utf-8"))]


def predicted(manifest: Path) -> HeaderPrediction:
    """Compute the prediction by the command of the header."""
    command = _COMMAND.search(manifest.read_text(encoding="utf-8"))
    assert command is not None, f"{manifest.name} has a command below its prediction"
    _, _, _, *words = shlex.split(command[1])
    options = dict(zip(words[::2], words[1::2], strict=True))
    inputs = read(SimulateOptions(manifest, options.get("--model"), options["--gpu-type"]))
    num_steps, spec = int(options["--steps"]), inputs.spec
    own = _simulated(inputs, spec, num_steps)
    synchronous = _simulated(inputs, _synchronous(spec), num_steps)
    return HeaderPrediction(
        own.mean_step_s,
        sim_job(inputs, spec).num_gpus,
        own.gpu_hours / len(own.steps) * spec.algorithm.steps,
        synchronous.mean_step_s / own.mean_step_s,
    )


def _simulated(inputs: Inputs, spec: RLJobSpec, num_steps: int) -> SimResult:
    return simulate(sim_job(inputs, spec), num_steps, keeps_spans=False)


def _synchronous(spec: RLJobSpec) -> RLJobSpec:
    return with_strategy(spec, Strategy.SYNCHRONOUS)


def main() -> None:
    """Write every prediction again."""
    for manifest in predicting():
        text, found = manifest.read_text(encoding="utf-8"), predicted(manifest)
        num_steps = read(SimulateOptions(manifest, "1B")).spec.algorithm.steps
        manifest.write_text(_LINE.sub(found.line(num_steps), text), encoding="utf-8")


if __name__ == "__main__":
    main()
