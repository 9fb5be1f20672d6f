"""The Helm chart: installed and removed by Helm's own library, without the helm program."""

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kubernetes.client.exceptions import ApiException

from longshore_cli.client import Json, Kube
from longshore_cli.errors import CliError

RELEASE: Final = "longshore"
NAMESPACE: Final = "longshore-system"
TIMEOUT_S: Final = 120


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


def default_chart() -> Path:
    """The chart of the source tree that this program runs from."""
    return Path(__file__).parents[2] / "charts" / RELEASE


def values(given: Json, operator_image: str | None, runtime_image: str | None) -> Json:
    """The values of a file, with the images of the command line over them."""
    merged = dict(given)
    if operator_image is not None:
        # A digest splits at its colon too: the chart joins both with a colon again.
        repository, _, tag = operator_image.rpartition(":")
        is_untagged = not repository or "/" in tag
        image = (
            {"repository": operator_image, "tag": "latest"} if is_untagged else {"repository": repository, "tag": tag}
        )
        merged["image"] = {**merged.get("image", {}), **image}
    if runtime_image is not None:
        merged["runtimeImage"] = runtime_image
    return merged


def install(cluster: Cluster, options: ChartOptions) -> str:
    """Install the chart, or upgrade what is installed; returns what was done.

    Raises:
        CliError: there is no chart, no Helm library, or Helm refused.
    """
    if not (options.chart / "Chart.yaml").exists():
        raise CliError(f"There is no chart in {options.chart}.", "Pass the directory of charts/longshore with --chart.")
    helm = _helm()
    try:
        with _config(helm, cluster, options.namespace) as config:
            state = _release_state(config)
            if state == "deployed":
                release = config.upgrade(str(options.chart), RELEASE, options.values, timeout=TIMEOUT_S)
                return f"upgraded to revision {_revision(release)}"
            if state:
                # An installation that never finished has nothing to upgrade from.
                config.uninstall(RELEASE, timeout=TIMEOUT_S)
            config.install(
                str(options.chart), RELEASE, options.values, timeout=TIMEOUT_S,
                namespace=options.namespace, create_namespace=True,
            )  # fmt: skip
            return "installed"
    except helm.HelmError as error:
        raise CliError(f"Helm could not install the chart: {' '.join(str(error).split())}") from error


def uninstall(cluster: Cluster, namespace: str) -> bool:
    """Remove the chart; False when it was not installed. The CRD stays, and with it every RLJob.

    Raises:
        CliError: no Helm library, or Helm refused.
    """
    helm = _helm()
    try:
        with _config(helm, cluster, namespace) as config:
            if not _release_state(config):
                return False
            config.uninstall(RELEASE, timeout=TIMEOUT_S)
            return True
    except helm.HelmError as error:
        raise CliError(f"Helm could not remove the chart: {' '.join(str(error).split())}") from error


def operator_deployments(kube: Kube, namespace: str) -> list[Json]:
    """Deployments of the release."""
    query = {"labelSelector": f"app.kubernetes.io/instance={RELEASE}"}
    return list(kube.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments", query=query)["items"])


def installed_runtime_image(kube: Kube) -> str | None:
    """The image that the installed operator gives to jobs; None where that cannot be seen."""
    try:
        deployments = operator_deployments(kube, NAMESPACE)
    except ApiException as error:
        if error.status in (403, 404):
            return None
        raise
    for deployment in deployments:
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            for word in container.get("command", []) + container.get("args", []):
                if word.startswith("--runtime-image="):
                    return str(word.partition("=")[2])
    return None


def _helm() -> ModuleType:
    try:
        import helm_python
    except ImportError as error:
        raise CliError(
            "Helm's library is not installed.",
            "Run `pip install longshore[devcluster]`, or install charts/longshore with the helm program.",
        ) from error
    assert isinstance(helm_python, ModuleType)
    return helm_python


def _config(helm: ModuleType, cluster: Cluster, namespace: str) -> Any:
    return helm.Config(kubeconfig_path=cluster.kubeconfig, kube_context=cluster.context, namespace=namespace)


def _release_state(config: Any) -> str:
    """Helm's word for the release as it is, as `deployed`; empty when there is none."""
    for release in config.list(all_states=True, name_filter=f"^{RELEASE}$"):
        info = release.get("info") or release
        return str(info.get("status") or "unknown").lower()
    return ""


def _revision(release: Any) -> Any:
    return release.get("version") or release.get("revision") or "?"
