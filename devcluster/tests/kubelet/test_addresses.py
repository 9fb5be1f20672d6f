"""Pods get loopback addresses that nobody else on the machine has."""

import ipaddress

from longshore_devcluster.kubelet.addresses import Addresses


def test_addresses_differ_between_pods_nodes_and_clusters() -> None:
    one, two = Addresses(), Addresses()
    given = [cluster.pod(uid) for cluster in (one, two) for uid in ("a", "b")]
    given += [cluster.node(index) for cluster in (one, two) for index in (0, 1)]
    one.close()
    two.close()

    assert len(set(given)) == 8
    assert all(ipaddress.ip_address(address).is_loopback for address in given)


def test_pod_keeps_its_address_and_gets_its_former_one_back() -> None:
    cluster = Addresses()
    address = cluster.pod("a")

    assert cluster.pod("a") == address
    cluster.release("a")
    assert cluster.pod("b", before=address) == address
    assert cluster.pod("c", before=address) != address
    cluster.close()


def test_former_address_of_another_cluster_is_not_taken() -> None:
    cluster = Addresses()

    assert cluster.pod("a", before="127.250.1.1") != "127.250.1.1"
    cluster.close()
