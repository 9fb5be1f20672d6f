"""RLJobs as the API server gives them, in the course of a run."""

from typing import Any

Json = dict[str, Any]


def rljob(runtime: Json | None = None, *, phase: str | None = "Running", steps: int = 10, attempt: int = 1,
          conditions: tuple[Json, ...] = (), **status: Any) -> Json:  # fmt: skip
    """An RLJob with this status."""
    return {
        "apiVersion": "longshore.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "demo", "namespace": "team", "uid": "uid-1"},
        "spec": {
            "algorithm": {"steps": steps},
            "rollout": {"strategy": "TailBatching"},
            "storage": {"claimName": "shared", "output": ""},
        },
        "status": {
            **({"phase": phase} if phase else {}),
            "attempt": attempt,
            "conditions": list(conditions),
            **({"runtime": {"attempt": attempt, "steps": steps, **runtime}} if runtime is not None else {}),
            **status,
        },
    }


def at_step(
    step: int, kind: str = "Short", *, fraction: float = 0.0, activity: str = "Rollout", **runtime: Any
) -> Json:
    """The coordinator's report while the round after `step` runs."""
    return {
        "step": step,
        "round": {"number": step + 1, "kind": kind, "fractionFinished": fraction},
        "activity": activity,
        **({"reward": 0.5 + step / 100} if step else {}),
        **runtime,
    }


def condition(kind: str, status: str, reason: str = "Because", message: str = "") -> Json:
    """A condition."""
    return {"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
