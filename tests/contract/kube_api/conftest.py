"""The cluster under test: the embedded API server, or a real one (``--kubeconfig PATH``)."""

import asyncio
import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from longshore_devcluster.apiserver import ApiServer
from tests.contract.kube_api.api import Api, eventually, is_established

GROUP = "contract.example.com"
Kubectl = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kubeconfig", help="run the contract tests against this cluster instead of the embedded one")


class _Background:
    """The embedded server on an event loop of its own."""

    def __init__(self, data_dir: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server = ApiServer(data_dir)
        self._call(self.server.start())

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def stop(self) -> None:
        self._call(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@pytest.fixture(scope="session")
def kubeconfig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = request.config.getoption("--kubeconfig", default=None) or os.environ.get("LONGSHORE_TEST_KUBECONFIG")
    if given:
        yield str(given)
        return
    background = _Background(tmp_path_factory.mktemp("apiserver"))
    yield str(background.server.kubeconfig_path)
    background.stop()


@pytest.fixture(scope="session")
def api(kubeconfig: str) -> Api:
    return Api(kubeconfig)


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """A namespace of the test's own, with its service account in place."""
    name = f"contract-{uuid.uuid4().hex[:8]}"
    with api.watching("/api/v1/serviceaccounts", fieldSelector="metadata.name=default") as accounts:
        known = len(api.get("/api/v1/serviceaccounts", fieldSelector="metadata.name=default").json["items"])
        answer = api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        assert answer.status == 201, answer.text
        accounts.take(known + 1)
    yield name
    api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def widgets(api: Api) -> Iterator[str]:
    """The custom resource ``widgets``, established; the value is its API path without namespace."""
    definition = yaml.safe_load((Path(__file__).parent / "widgets.yaml").read_text())
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    name = definition["metadata"]["name"]
    with api.watching(path, fieldSelector=f"metadata.name={name}") as events:
        answer = api.post(path, definition)
        assert answer.status == 201, answer.text
        events.until(is_established)
    # A real server begins to serve them a moment later.
    eventually("they are served", lambda: api.get(f"/apis/{GROUP}/v1/widgets").status == 200)
    yield f"/apis/{GROUP}/v1"
    api.delete(f"{path}/{name}")


@pytest.fixture
def widget_path(widgets: str, namespace: str) -> str:
    """The collection of widgets in the test's namespace."""
    return f"{widgets}/namespaces/{namespace}/widgets"


@pytest.fixture
def kubectl(kubeconfig: str, namespace: str, tmp_path: Path) -> Kubectl:
    """The real kubectl in the test's namespace, with a cache of its own."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed")

    def run(*arguments: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        base = [program, f"--kubeconfig={kubeconfig}", f"--cache-dir={tmp_path / 'cache'}", f"--namespace={namespace}"]
        done = subprocess.run([*base, *arguments], input=stdin, capture_output=True, text=True, timeout=120)
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return run
