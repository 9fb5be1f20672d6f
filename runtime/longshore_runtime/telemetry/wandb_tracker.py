"""Send metrics to Weights & Biases. Imported only if a job names it."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import wandb

from longshore.api.tracking import Wandb, WandbMode
from longshore_runtime.telemetry.background import CLOSE_LIMIT_S
from longshore_runtime.telemetry.tracker import TrackedRun

_INIT_LIMIT_S: Final = 60.0


class WandbTracker:
    """One run of Weights & Biases, whose id is the uid of the job."""

    def __init__(self, options: Wandb, token: str | None) -> None:
        self._options = options
        self._token = token
        self._run: Any = None
        self._first_step = 0
        """First step of this attempt: the service accepts nothing for earlier ones."""

    def start(self, run: TrackedRun) -> int:
        # The user of the pod has no home directory.
        for variable in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            os.environ.setdefault(variable, str(Path(tempfile.gettempdir()) / "wandb"))
        # The package would report about itself to its maker, from a thread of its own.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        is_online = self._options.mode is WandbMode.ONLINE
        settings = wandb.Settings(
            init_timeout=_INIT_LIMIT_S,
            finish_timeout=CLOSE_LIMIT_S,  # Its exit handler waits for a service that is away as long as it takes.
            api_key=self._token if is_online else None,
            console="off",
            silent=True,
            # Metrics only: nothing of the machine, its packages or its code.
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            disable_git=True,
            save_code=False,
            **({"base_url": self._options.address} if self._options.address is not None else {}),
        )
        self._run = wandb.init(
            entity=self._options.entity,
            project=run.project,
            group=run.group,
            name=run.name,
            id=run.uid,
            resume="allow",
            config=dict(run.config),
            dir=str(run.output),
            mode="online" if is_online else "offline",
            settings=settings,
        )
        self._first_step = int(self._run.step) if self._run.resumed else 0
        return self._first_step - 1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=max(step, self._first_step))

    def finish(self, *, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)

    def pause(self) -> None:
        # An exit code would tell that the run has failed; what is uploaded stays, and the next attempt resumes it.
        self._run.finish()
