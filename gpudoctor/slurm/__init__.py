"""What Slurm's prolog, epilog and health check do on a node: judge it, and drain it within limits."""
