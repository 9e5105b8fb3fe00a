"""Slurm's prolog, epilog and health check on a node: check it, and drain it within limits."""

from typing import Literal

Hook = Literal["prolog", "epilog", "health"]
HOOKS: tuple[Hook, ...] = ("prolog", "epilog", "health")
