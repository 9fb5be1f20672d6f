"""Actors go to the pod that they are meant for."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from longshore.api import contract
from longshore.api.names import Component
from longshore_runtime.cluster.placement import node_labels, placement, set_environment


def test_an_actor_is_bound_to_the_labels_of_its_pod() -> None:
    assert placement(2).options["label_selector"] == node_labels(Component.WORKER, 2)
    assert placement(0, component=Component.REWARD).options["label_selector"] == node_labels(Component.REWARD, 0)


def test_an_actor_sees_only_the_gpus_it_was_given() -> None:
    assert started_at(placement(0, gpus=[2, 3], environment={"LIMIT": "1"})) == {
        "CUDA_VISIBLE_DEVICES": "2,3",
        "LIMIT": "1",
    }
    assert started_at(placement(0)) == {"CUDA_VISIBLE_DEVICES": ""}


def test_ray_counts_neither_cpus_nor_gpus() -> None:
    options = placement(0, gpus=[0]).options
    assert options["num_cpus"] == 0
    assert "num_gpus" not in options


def test_no_actor_needs_the_agent_for_runtime_environments_which_nodes_do_not_run() -> None:
    assert "runtime_env" not in placement(0, gpus=[0], environment={"LIMIT": "1"}).options


def test_the_environment_is_set_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    set_environment(placement(0, gpus=[1]).environment)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


def test_files_of_the_user_are_importable_and_take_no_packages_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "of_the_user.py").write_text("")
    (tmp_path / "numpy.py").write_text("")
    monkeypatch.setenv(contract.ENV_MODULES, str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    set_environment({})
    specs = [importlib.util.find_spec(name) for name in ("of_the_user", "numpy")]
    assert [spec is not None and str(tmp_path) in str(spec.origin) for spec in specs] == [True, False]


def started_at(place: Any) -> Any:
    """The environment that an actor there is given."""

    class Target:
        def options(self, **options: Any) -> "Target":
            assert options == place.options
            return self

        def remote(self, environment: Any, argument: str) -> Any:
            assert argument == "argument"
            return environment

    return place.remote(Target(), "argument")
