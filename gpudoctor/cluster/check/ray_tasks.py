"""On Ray: one task per node, each of which runs a member and holds all of the node's GPUs meanwhile."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from gpudoctor.process.own_program import PACKAGE_ROOT
from gpudoctor.process.pipes import write_all


def begin(order: str) -> None:
    """Run `run_on_every_node` with the arguments in `order`, a JSON list, and exit."""
    os.chdir("/")  # Ray's workers search for modules in the caller's working directory
    sys.exit(run_on_every_node(*json.loads(order)))


def run_on_every_node(argv: Sequence[str], token_fd: int, nodes_wanted: int | None) -> int:
    """Print the nodes' names as one line of JSON, run `gpudoctor ARGV` on each, and return 0 when all have ended.

    The job's token is read from the file descriptor and passed as a task argument: every user of a node can read
    command lines.

    Only nodes that are alive are used and, if any node has GPUs, only those with GPUs: a head without GPUs is left out.
    """
    with os.fdopen(token_fd) as stream:
        token = stream.read()
    stdout = os.dup(1)
    os.dup2(2, 1)  # whatever Ray prints must not come before that line
    import logging

    import ray as typed_in_parts
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray: Any = typed_in_parts
    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), logging_level=logging.ERROR, log_to_driver=False)
    alive: list[dict[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
    nodes = ([node for node in alive if node["Resources"].get("GPU")] or alive)[:nodes_wanted]
    write_all(stdout, json.dumps([node["NodeManagerHostname"] for node in nodes]).encode() + b"\n")
    root = PACKAGE_ROOT

    def member(token: str) -> int:
        import sys

        # if gpudoctor is not installed on that node, it may be at the same path on a shared file system
        sys.path.append(root)
        from gpudoctor.cluster.check.placement import token_pipe
        from gpudoctor.process.die_with_parent import dependent_gpudoctor
        from gpudoctor.process.spawn import Child

        with token_pipe(token) as fd:
            # without the folders of Ray's own libraries
            command = dependent_gpudoctor([*argv, "--token-fd", str(fd)], sys.executable)
            return Child(command, pass_fds=(fd,), new_session=False).wait()

    task = ray.remote(member)
    running = [
        task.options(
            num_cpus=0,
            # all GPUs: Ray hides them from a task that requests none, and no other task may use them meanwhile
            num_gpus=node["Resources"].get("GPU", 0),
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(token)
        for node in nodes
    ]
    ray.wait(running, num_returns=len(running))
    return 0
