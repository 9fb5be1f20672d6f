"""The kubelet of the embedded cluster: runs pods as processes of this machine."""

from longshore_devcluster.kubelet.kubelet import Kubelet, KubeletConfig
from longshore_devcluster.kubelet.layout import create_run_dir, remove_if_empty, remove_run_dir
from longshore_devcluster.kubelet.streams import ContainerStreams

__all__ = [
    "ContainerStreams",
    "Kubelet",
    "KubeletConfig",
    "create_run_dir",
    "remove_if_empty",
    "remove_run_dir",
]
