"""The state directory: what `longshore up` keeps for the embedded cluster of one directory."""

import os
from collections.abc import Mapping
from pathlib import Path


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return $LONGSHORE_HOME, else `.longshore` in the current directory."""
    return Path(environment.get("LONGSHORE_HOME") or ".longshore").absolute()


def cluster_dir() -> Path:
    """Return the data directory of the embedded cluster."""
    return home() / "cluster"


def embedded_kubeconfig(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the kubeconfig of this directory's embedded cluster; None when it was never started, or was stopped."""
    marker = home(environment) / "kubeconfig"
    return Path(marker.read_text().strip()) if marker.exists() else None


def remember_kubeconfig(path: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Have commands in this directory use the embedded cluster from now on."""
    marker = home(environment) / "kubeconfig"
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text(f"{path}\n")


def forget_kubeconfig(environment: Mapping[str, str] = os.environ) -> None:
    """Have commands in this directory use the default kubeconfig again."""
    (home(environment) / "kubeconfig").unlink(missing_ok=True)
