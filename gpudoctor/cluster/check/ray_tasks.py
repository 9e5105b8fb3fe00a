"""On Ray: one task a node, each of which runs a member and holds all of the node's GPUs meanwhile."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from gpudoctor.process.own_program import PACKAGE_ROOT
from gpudoctor.process.pipes import write_all


def begin(order: str) -> None:
    """In the process that talks to Ray; the order is what `run_on_every_node` takes, as JSON. Ends the process."""
    os.chdir("/")  # Ray has its workers search for modules in the working directory of who asks
    sys.exit(run_on_every_node(*json.loads(order)))


def run_on_every_node(argv: Sequence[str], token_fd: int, nodes_wanted: int | None) -> int:
    """Tell the nodes on stdout, as one line of JSON; run `gpudoctor ARGV` on each; give 0 when all have ended.

    The job's token comes by the file descriptor, and goes to each as a task's argument: command lines can be read by
    everybody on a node.

    A node counts where it is alive and, if any node has GPUs, has some: a head without GPUs takes no part.
    """
    with os.fdopen(token_fd) as stream:
        token = stream.read()
    stdout = os.dup(1)
    os.dup2(2, 1)  # what Ray prints must not come before the line
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

        # where gpudoctor is not installed there, it may lie at the same place, on a disk that the nodes share
        sys.path.append(root)
        from gpudoctor.cluster.check.job_token import token_pipe
        from gpudoctor.process.die_with_parent import dependent_gpudoctor
        from gpudoctor.process.spawn import Child

        with token_pipe(token) as fd:
            # without the folders in which Ray keeps its own libraries
            command = dependent_gpudoctor([*argv, "--token-fd", str(fd)], sys.executable)
            return Child(command, pass_fds=(fd,), new_session=False).wait()

    task = ray.remote(member)
    running = [
        task.options(
            num_cpus=0,
            # all of them: Ray hides the GPUs from a task that asks for none, and no other task may use them meanwhile
            num_gpus=node["Resources"].get("GPU", 0),
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(token)
        for node in nodes
    ]
    ray.wait(running, num_returns=len(running))
    return 0
