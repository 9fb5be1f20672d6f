"""What a quickstart says at its end."""

from pathlib import Path

from longshore_cli.quickstart import next_commands


def test_the_next_commands_include_the_page_and_how_longshore_gets_on_the_path() -> None:
    text = next_commands("demo", "default", "/cluster/kubeconfig", Path("/checkout/.venv/bin"))
    commands = [line.split("#")[0].strip() for line in text.splitlines() if line.startswith("  ")]
    assert commands == [
        "export PATH=/checkout/.venv/bin:$PATH",
        "export KUBECONFIG=/cluster/kubeconfig",
        "longshore ui demo",
        "longshore report demo",
        "longshore fetch demo trained-model",
        "kubectl get rljobs,pods -L longshore.dev/role",
        "kubectl describe rljob demo",
        "longshore down",
    ]


def test_on_a_cluster_of_the_user_nothing_is_exported_or_stopped() -> None:
    text = next_commands("demo", "team", None, None)
    assert "export" not in text and "down" not in text
    assert "longshore ui demo -n team" in text
