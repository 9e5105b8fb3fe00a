"""One node, checked on a schedule, with the result served to Prometheus and to health checks."""

DEFAULT_LISTEN = "127.0.0.1:9464"  # here, since the command line imports nothing else of this room
