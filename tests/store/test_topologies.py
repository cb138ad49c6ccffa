"""Tests can lose a master of a real cluster, or of a Sentinel set, and go on."""

from __future__ import annotations

import pytest

from tests.topologies import Cluster, SentinelSet, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("topologies")]


def test_each_slot_of_a_cluster_has_a_durable_master(cluster: Cluster) -> None:
    masters = {cluster.master_of(slot).port for slot in (0, 8000, 16383)}

    assert len(masters) == 3
    for node in cluster.nodes:
        assert node.ask("CONFIG", "GET", "appendfsync") == [b"appendfsync", b"always"]


def test_a_replica_takes_the_place_of_a_killed_master_of_a_cluster(
    replicated_cluster: Cluster,
) -> None:
    killed = replicated_cluster.master_of(0)

    killed.kill()

    until(lambda: replicated_cluster.master_of(0) is not killed, "there is another")
    killed.start()
    until(replicated_cluster.is_whole, "it is a replica now")


def test_sentinels_replace_a_killed_master(sentinel_set: SentinelSet) -> None:
    killed = sentinel_set.master()

    killed.kill()

    until(lambda: sentinel_set.master() is not killed, "there is another")
    assert not killed.is_running
