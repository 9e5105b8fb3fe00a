"""Imports every module of built-in checks, so that they register."""

from gpudoctor.checks import (  # noqa: F401
    collective,
    driver,
    environment,
    gpus,
    health,
    host,
    network,
    nvlink,
    pcie,
    topology,
    training,
)
