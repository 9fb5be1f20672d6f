"""What goes over the wire."""

from datetime import UTC, datetime

from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import RLJobStatus
from longshore_operator.apply import event_manifest, status_fields
from longshore_operator.plan import Event

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_coordinators_part_of_the_status_is_never_written() -> None:
    assert "runtime" not in status_fields(RLJobStatus(attempt=1, runtime=RuntimeStatus(step=3)))


def test_fields_without_a_value_are_left_out_so_that_they_are_removed() -> None:
    assert "restartTime" not in status_fields(RLJobStatus())


def test_a_long_message_of_an_event_is_cut_by_bytes_and_between_characters() -> None:
    message = event_manifest(("team", "demo"), "u", Event("Warning", "Failed", "ü" * 2000, "k"), NOW)["message"]
    assert message == "ü" * 512
    odd = event_manifest(("team", "demo"), "u", Event("Warning", "Failed", "x" + "ü" * 2000, "k"), NOW)["message"]
    assert odd == "x" + "ü" * 511


def test_the_same_event_has_the_same_name_and_another_has_another() -> None:
    def name(key: str) -> str:
        manifest = event_manifest(("team", "demo"), "u", Event("Normal", "Started", "now", key), NOW)
        return str(manifest["metadata"]["name"])

    assert name("attempt-1") == name("attempt-1")
    assert name("attempt-1") != name("attempt-2")
    assert name("attempt-1").startswith("demo.")
