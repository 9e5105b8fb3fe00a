"""One node, checked on a schedule, with the result served to Prometheus and to health checks."""
