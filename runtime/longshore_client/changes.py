"""Which fields of a running job a manifest would change."""

from collections.abc import Iterator
from typing import Any, Final

from longshore_client.errors import ClientError
from longshore_kube.resources import Json

_AT_ANY_TIME: Final = ("suspend", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit")


def refused_change(there: Json, wanted: Json) -> ClientError:
    """Return the refusal to change a job that is not suspended, with the fields and the commands that help."""
    name = there["metadata"]["name"]
    stored, given = ({k: v for k, v in one["spec"].items() if k not in _AT_ANY_TIME} for one in (there, wanted))
    fields = ", ".join(changed_fields(stored, given)) or "A field that the file leaves out"
    return ClientError(
        f"{fields}: this may change only while the RLJob {name!r} is suspended.",
        f"Run `longshore suspend {name}`, submit the file again, and run `longshore resume {name}`.",
    )


def changed_fields(stored: Any, given: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that `given` has and whose values in `stored` are others."""
    if not isinstance(given, dict) or not isinstance(stored, dict):
        if stored != given:
            yield path
        return
    for key, value in given.items():
        yield from changed_fields(stored.get(key), value, f"{path}.{key}" if path else key)
