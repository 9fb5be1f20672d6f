"""Send metrics to MLflow with its client package. Imported only if a job names it."""

import os
import re
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.tracking.request_header import registry
from mlflow.tracking.request_header.abstract_request_header_provider import RequestHeaderProvider

from longshore.api.tracking import Mlflow
from longshore_runtime.telemetry.tracker import TrackedRun

_UID: Final = "longshore.job_uid"
_GROUP: Final = "longshore.group"
_LAST_STEP: Final = "longshore.last_step"
"""Tag with the last step of a run, because MLflow does not say which steps a run has."""
_MAX_VALUE_CHARACTERS: Final = 500
_MAX_PARAMS: Final = 100
"""Largest number of parameters in one request."""
_MAX_METRICS: Final = 500
_NOT_ALLOWED: Final = re.compile(r"[^\w\-./: ]")
"""Characters that names of metrics cannot have; names of domains are the user's."""
_MAX_NAME_CHARACTERS: Final = 250
_ANSWER_LIMIT_S: Final = 15
_RETRIES: Final = 2


class _Authorization(RequestHeaderProvider):
    """Adds the token to requests: the client reads it only from the environment, which programs inherit."""

    header: str | None = None

    def in_context(self) -> bool:
        return self.header is not None

    def request_headers(self) -> dict[str, str]:
        assert self.header is not None
        return {"Authorization": self.header}


registry._request_header_provider_registry.register(_Authorization)


def _authorization(user: str | None, token: str | None) -> str | None:
    if token is None:
        return None
    return f"Bearer {token}" if user is None else f"Basic {b64encode(f'{user}:{token}'.encode()).decode()}"


class MlflowTracker:
    """One run of MLflow; a later attempt finds it by a tag with the uid of the job."""

    def __init__(self, options: Mlflow, token: str | None) -> None:
        # The client takes these from nowhere else.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(_ANSWER_LIMIT_S))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(_RETRIES))
        _Authorization.header = _authorization(options.user, token)
        self._client = MlflowClient(options.address)
        self._run_id = ""

    def start(self, run: TrackedRun) -> int:
        experiment = self._experiment(run.project)
        found = self._client.search_runs([experiment], f"tags.`{_UID}` = '{run.uid}'", max_results=1)
        if found:
            self._run_id = found[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            return int(found[0].data.tags.get(_LAST_STEP, -1))
        tags = {_UID: run.uid, **({_GROUP: run.group} if run.group is not None else {})}
        self._run_id = self._client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        params = _flat(run.config)
        while some := [Param(key, value) for key, value in islice(params, _MAX_PARAMS)]:
            self._client.log_batch(self._run_id, params=some)
        return -1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now_ms = int(time.time() * 1000)
        metrics = [Metric(_metric_name(name), value, now_ms, step) for name, value in values.items()]
        for first in range(0, len(metrics), _MAX_METRICS):
            self._client.log_batch(self._run_id, metrics[first : first + _MAX_METRICS])
        self._client.log_batch(self._run_id, tags=[RunTag(_LAST_STEP, str(step))])

    def finish(self, *, succeeded: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if succeeded else "FAILED")

    def pause(self) -> None:
        """Leave the run open, for the next attempt to continue."""

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:
            # Another job has made it meanwhile.
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)


def _metric_name(name: str) -> str:
    """Return a name that MLflow takes: like a path without empty, `.` and `..` parts, and not too long."""
    parts = [part if part.strip(".") else "_" * len(part) for part in _NOT_ALLOWED.sub("_", name).split("/") if part]
    return "/".join(parts)[:_MAX_NAME_CHARACTERS].rstrip("/")


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested settings to names with dots, and cut long values."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)[:_MAX_VALUE_CHARACTERS]
