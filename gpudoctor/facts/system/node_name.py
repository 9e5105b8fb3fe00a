"""The name of this node, by which reports, metrics and schedulers know it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

NODE_NAME_VARIABLE = "GPUDOCTOR_NODE_NAME"


def node_name(environment: Mapping[str, str] | None = None) -> str:
    """What GPUDOCTOR_NODE_NAME says, else the hostname.

    A pod without the host's network has a hostname of its own; its manifest gives the node's name in the variable
    (Kubernetes' downward API, spec.nodeName).
    """
    return given_node_name(os.environ if environment is None else environment) or socket.gethostname()


def given_node_name(environment: Mapping[str, str]) -> str | None:
    """What GPUDOCTOR_NODE_NAME says; None if it is not set or empty. Bytes that are not UTF-8 become `?`."""
    return environment.get(NODE_NAME_VARIABLE, "").strip().encode("utf-8", "replace").decode() or None
