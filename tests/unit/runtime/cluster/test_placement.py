"""Actors go to the pod that they are meant for."""

from longshore.api.names import Component
from longshore_runtime.cluster.placement import node_labels, placement


def test_an_actor_is_bound_to_the_labels_of_its_pod() -> None:
    assert placement(2)["label_selector"] == node_labels(Component.WORKER, 2)
    assert placement(0, component=Component.REWARD)["label_selector"] == node_labels(Component.REWARD, 0)


def test_an_actor_sees_only_the_gpus_it_was_given() -> None:
    assert placement(0, gpus=[2, 3])["runtime_env"] == {"env_vars": {"CUDA_VISIBLE_DEVICES": "2,3"}}
    assert placement(0)["runtime_env"] == {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}


def test_ray_counts_neither_cpus_nor_gpus() -> None:
    options = placement(0, gpus=[0])
    assert options["num_cpus"] == 0
    assert "num_gpus" not in options
