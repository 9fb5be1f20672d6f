"""A thin hand on the real kubectl, as the contract tests use it."""

import json
import subprocess
from pathlib import Path
from typing import Any

Json = dict[str, Any]
SCRATCH: Json = {
    "volumes": [{"name": "v", "emptyDir": {}}],
    "c_volumeMounts": [{"name": "v", "mountPath": "/scratch"}],
}
"""Fields of a pod whose container keeps files in /scratch when it restarts."""


class Kubectl:
    """kubectl in one namespace. `image` runs the test pods where images matter."""

    def __init__(self, kubeconfig: Path, namespace: str, image: str) -> None:
        self.base = ["kubectl", f"--kubeconfig={kubeconfig}", f"--namespace={namespace}"]
        self.namespace = namespace
        self.image = image

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        """Run it; the standard output. Errors: AssertionError with the standard error."""
        done = self.attempt(*arguments, stdin=stdin, timeout_s=timeout_s)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def attempt(
        self, *arguments: str, stdin: str | None = None, timeout_s: float = 120
    ) -> "subprocess.CompletedProcess[str]":
        """Run it, whatever the outcome."""
        return subprocess.run(
            [*self.base, *arguments],
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Run it in the background, its output readable."""
        return subprocess.Popen(
            [*self.base, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def apply(self, *objects: Json) -> None:
        """Apply objects."""
        self("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, what: str) -> Json:
        """One object, as `kind/name`."""
        found = json.loads(self("get", what, "-o", "json"))
        assert isinstance(found, dict)
        return found

    def wait(self, what: str, path: str, value: str, timeout_s: int = 100) -> Json:
        """Wait until a JSONPath of an object has a value (a condition: `Ready=True`); then the object."""
        self("wait", what, f"--for=jsonpath={{{path}}}={value}", f"--timeout={timeout_s}s", timeout_s=timeout_s + 10)
        return self.get(what)

    def wait_ready(self, what: str) -> Json:
        """Wait for the Ready condition."""
        self("wait", what, "--for=condition=Ready", "--timeout=100s")
        return self.get(what)

    def wait_phase(self, pod: str, phase: str) -> Json:
        """Wait for the phase of a pod."""
        return self.wait(f"pod/{pod}", ".status.phase", phase)

    def ready_pod(self, script: str, **fields: Any) -> Json:
        """Apply a pod `p` and wait until it is ready."""
        self.apply(self.pod("p", script, **fields))
        return self.wait_ready("pod/p")

    def output(self, script: str, **fields: Any) -> str:
        """Apply a pod `p` that runs once; its log when it has succeeded."""
        self.apply(self.pod("p", script, restartPolicy="Never", **fields))
        self.wait_phase("p", "Succeeded")
        return self("logs", "p")

    def events(self, name: str) -> dict[str, str]:
        """Messages of the events of an object, by reason."""
        found = json.loads(self("get", "events", f"--field-selector=involvedObject.name={name}", "-o", "json"))
        return {event["reason"]: event["message"] for event in found["items"]}

    def pod(self, name: str, script: str, *, labels: Json | None = None, **fields: Any) -> Json:
        """A pod whose one container, `main`, runs a shell script; a field of the container starts with `c_`."""
        own = {field.removeprefix("c_"): fields.pop(field) for field in list(fields) if field.startswith("c_")}
        spec = {"terminationGracePeriodSeconds": 5, "containers": [self.container("main", script, **own)], **fields}
        meta = {"name": name, "labels": labels or {}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    def container(self, name: str, script: str, **fields: Any) -> Json:
        """A container that runs a shell script."""
        return {"name": name, "image": self.image, "command": ["sh", "-c", script], **fields}
