"""A Ray cluster of this machine: a head without a device, and two nodes of one core each.

Prints its address, then does what lines on standard input say: ``lose`` kills a node, ``add`` adds
one; at their end the cluster ends. A process of its own, as the driver of a study is another.
"""

from __future__ import annotations

import logging
import sys

from ray.cluster_utils import Cluster

MEMORY = 80 * 2**20


def main() -> None:
    logging.disable()
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "include_dashboard": False,
            "object_store_memory": MEMORY,
        },
    )
    nodes = [_added(cluster) for _ in range(2)]
    _say(cluster.address)
    for line in sys.stdin:
        if line.strip() == "lose":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            _say("lost")
        else:
            nodes.append(_added(cluster))
            _say("added")
    cluster.shutdown()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _added(cluster: Cluster) -> object:
    return cluster.add_node(num_cpus=1, object_store_memory=MEMORY)


if __name__ == "__main__":
    main()
