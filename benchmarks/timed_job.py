"""Run one job on a given model in the coordinator pod of a comparison, and write what its steps took to a file."""

import json
import queue
import shutil
import sys
import time
from pathlib import Path

from prometheus_client import CollectorRegistry

from benchmarks.local_pods import ray_head
from benchmarks.timed_loop import timed_steps
from benchmarks.workload import NoSink
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore_runtime.elastic.job_watch import NoOperator
from longshore_runtime.process.logs import configure_logging
from longshore_runtime.session.session import Session


def main(model: str, evaluate_every_steps: str, result_file: str) -> None:
    """Run the job of the pod's specification on `model`, which becomes the model that it names."""
    configure_logging()
    begun_s = time.monotonic()
    with ray_head() as settings:
        spec = RLJobSpec.model_validate_json(settings.config.read_text(encoding="utf-8"))
        if spec.model.path is not None:
            shutil.copytree(model, settings.storage / spec.model.path)
        with Session(
            settings, spec, CollectorRegistry(), NoSink(), RuntimeStatus(), queue.SimpleQueue(), NoOperator()
        ) as session:
            parts = session.build()
            steps, evaluations = timed_steps(session.spec, parts, int(evaluate_every_steps))
            whole_s = time.monotonic() - begun_s
    result = {"whole_s": whole_s, "steps": steps, "evaluations": evaluations}
    Path(result_file).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
