"""Labels and annotations that an API server refuses: those of the job, and those that its pods would have or look for.

Kubernetes checks their form in code, so no CRD tells it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from longshore.api.pods import PodOptions
from longshore.api.rljob import RLJob
from longshore_operator.template_rules import pod_options

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""What stands behind the slash of a key, and a value of a label that is not empty."""
_DOMAIN: Final = re.compile(r"(?=.{1,253}$)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_RULE: Final = "letters, digits, '-', '_' and '.', with a letter or digit at both ends"


def label_mistakes(job: RLJob) -> Iterator[str]:
    """Yield a sentence for each key or value that has not the form of one."""
    for kind in ("labels", "annotations"):
        yield from _not_texts(f"metadata.{kind}", job.metadata.get(kind))
    yield from _of_metadata("metadata", job.metadata)
    for field, pods in pod_options(job.spec).items():
        yield from _of_pods(f"spec.{field}", pods)


def _not_texts(field: str, entries: object) -> Iterator[str]:
    """Yield mistakes of labels or annotations that are no texts; in a template, the operator refuses them."""
    if entries is not None and not isinstance(entries, Mapping):
        yield f"{field}: it must be an object of texts"
    for key, value in _entries(entries):
        if not isinstance(value, str):
            yield f"{field}[{key}]: it must be a text; put it in quotes"


def _of_pods(field: str, pods: PodOptions) -> Iterator[str]:
    yield from _labels(f"{field}.nodeSelector", pods.node_selector)
    yield from _of_metadata(f"{field}.template.metadata", pods.template.get("metadata"))
    spec = pods.template.get("spec")
    if isinstance(spec, Mapping):
        yield from _labels(f"{field}.template.spec.nodeSelector", spec.get("nodeSelector"))


def _of_metadata(field: str, metadata: object) -> Iterator[str]:
    if isinstance(metadata, Mapping):
        yield from _labels(f"{field}.labels", metadata.get("labels"))
        for key, _ in _entries(metadata.get("annotations")):
            yield from _key(f"{field}.annotations", key.lower())  # Of annotations, capitals do not count.


def _labels(field: str, labels: object) -> Iterator[str]:
    for key, value in _entries(labels):
        yield from _key(field, key)
        if isinstance(value, str) and value and not _NAME.fullmatch(value):
            yield f"{field}[{key}]: {value!r} is no value of a label: use at most 63 {_RULE}"


def _key(field: str, key: str) -> Iterator[str]:
    domain, slash, name = key.rpartition("/")
    if not _NAME.fullmatch(name) or (slash and not _DOMAIN.fullmatch(domain)):
        yield f"{field}: {key!r} is no key: use at most 63 {_RULE}, after a domain and a slash if it has one"


def _entries(found: object) -> Iterable[tuple[str, Any]]:
    return [(str(key), value) for key, value in found.items()] if isinstance(found, Mapping) else ()
