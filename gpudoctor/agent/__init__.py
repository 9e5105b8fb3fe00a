"""Checks one node on a schedule and serves the result to Prometheus and to health checks."""

DEFAULT_LISTEN = "127.0.0.1:9464"  # here because the command line imports nothing else of this package
