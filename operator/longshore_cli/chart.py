"""The Helm chart: installed and removed by Helm's own library, without the helm program."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from longshore.api import names
from longshore_cli.errors import CliError
from longshore_client.installed import NAMESPACE, RELEASE
from longshore_client.kube import Kube
from longshore_kube.errors import ApiError
from longshore_kube.resources import Json

TIMEOUT_S: Final = 120
_WORKED: Final = {"deployed", "superseded"}
_CRD: Final = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{names.PLURAL}.{names.GROUP}"


@dataclass(frozen=True)
class ChartOptions:
    """What is installed, and where."""

    chart: Path
    namespace: str = NAMESPACE
    values: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Cluster:
    """How Helm finds the cluster."""

    kubeconfig: str | None
    context: str | None


def _namespace(name: str) -> str:
    return f"/api/v1/namespaces/{name}"


def values(given: Json, operator_image: str | None, runtime_image: str | None) -> Json:
    """Return the values of a file, with the images of the command line over them."""
    merged = dict(given)
    if operator_image is not None:
        merged["image"] = {**merged.get("image", {}), **_image_values(operator_image)}
    if runtime_image is not None:
        merged["runtimeImage"] = runtime_image
    return merged


def _image_values(image: str) -> Json:
    """Return the values of a repository, and of its tag or digest."""
    named, _, digest = image.partition("@")
    repository, _, tag = named.rpartition(":")
    if not repository or "/" in tag:
        repository, tag = named, "" if digest else "latest"
    return {"repository": repository, "tag": tag, "digest": digest}


def install(kube: Kube, cluster: Cluster, options: ChartOptions) -> str:
    """Install the chart, or upgrade what is installed; returns what was done.

    A failure changes nothing: an upgrade is rolled back, and of an installation nothing stays.

    Raises:
        CliError: there is no chart, no Helm library, or Helm refused.
    """
    if not (options.chart / "Chart.yaml").exists():
        raise CliError(f"There is no chart in {options.chart}.", "Pass the directory of charts/longshore with --chart.")
    helm = _helm()
    absent = [path for path in (_CRD, _namespace(options.namespace)) if not _stays(kube, path)]
    try:
        with _config(helm, cluster, options.namespace) as config:
            return _install_or_upgrade(helm, config, options)
    except helm.HelmError as error:
        left = [path for path in absent if not _remove(kube, path)]
        hint = f"Remove what it made: {', '.join(left)}." if left else ""
        raise CliError(f"Helm could not install the chart: {' '.join(str(error).split())}", hint) from error


def _install_or_upgrade(helm: ModuleType, config: Any, options: ChartOptions) -> str:
    revisions = _revisions(config)
    worked = [number for number, state in revisions.items() if state in _WORKED]
    if not worked:
        if revisions:
            # An installation that never finished has nothing to upgrade from.
            config.uninstall(RELEASE, timeout=TIMEOUT_S)
        _install(helm, config, options)
        return "installed"
    newest = max(revisions)
    if revisions[newest].startswith("pending"):
        # An upgrade that was interrupted blocks the next one.
        config.rollback(RELEASE, version=max(worked), timeout=TIMEOUT_S)
    try:
        release = config.upgrade(str(options.chart), RELEASE, options.values, timeout=TIMEOUT_S)
    except helm.HelmError:
        # Helm could do this itself, but then it also waits for pods and withdraws those that somebody could look at.
        with suppress(helm.HelmError):
            config.rollback(RELEASE, version=max(worked), timeout=TIMEOUT_S)
        raise
    return f"upgraded to revision {_revision(release)}"


def _install(helm: ModuleType, config: Any, options: ChartOptions) -> None:
    try:
        config.install(
            str(options.chart), RELEASE, options.values, timeout=TIMEOUT_S,
            namespace=options.namespace, create_namespace=True,
        )  # fmt: skip
    except helm.HelmError:
        with suppress(helm.HelmError):
            config.uninstall(RELEASE, timeout=TIMEOUT_S, ignore_not_found=True)
        raise


def _stays(kube: Kube, path: str) -> bool:
    """Return whether an object is there and is not being deleted: one that is may be gone when Helm creates it."""
    found = kube.find(path)
    return found is not None and "deletionTimestamp" not in found["metadata"]


def _remove(kube: Kube, path: str) -> bool:
    """Remove what a failed installation created; keep a CRD that is in use by now."""
    try:
        if kube.find(path) is None:
            return True
        if (
            path == _CRD
            and kube.request("GET", f"/apis/{names.API_VERSION}/{names.PLURAL}", query={"limit": "1"})["items"]
        ):
            return False
        kube.request("DELETE", path)
    except ApiError:
        return False
    return True


def uninstall(cluster: Cluster, namespace: str) -> bool:
    """Remove the chart; False when it was not installed. The CRD stays, and with it every RLJob.

    Raises:
        CliError: no Helm library, or Helm refused.
    """
    helm = _helm()
    try:
        with _config(helm, cluster, namespace) as config:
            if not _revisions(config):
                return False
            config.uninstall(RELEASE, timeout=TIMEOUT_S)
            return True
    except helm.HelmError as error:
        raise CliError(f"Helm could not remove the chart: {' '.join(str(error).split())}") from error


def _helm() -> ModuleType:
    try:
        import helm_python
    except ImportError as error:
        raise CliError(
            "Helm's library is not installed.",
            "Install Longshore with its extra `cli`, or install charts/longshore with the helm program.",
        ) from error
    assert isinstance(helm_python, ModuleType)
    return helm_python


def _config(helm: ModuleType, cluster: Cluster, namespace: str) -> Any:
    return helm.Config(kubeconfig_path=cluster.kubeconfig, kube_context=cluster.context, namespace=namespace)


def _revisions(config: Any) -> dict[int, str]:
    """Return Helm's word for each revision of the release, as `deployed`; empty when there is none."""
    if not config.list(all_states=True, name_filter=f"^{RELEASE}$"):
        return {}
    return {
        _revision(one): str((one.get("info") or one).get("status") or "unknown").lower()
        for one in config.history(RELEASE)
    }


def _revision(release: Any) -> int:
    return int(release.get("version") or release.get("revision") or 0)
