"""collective.*: measured collectives over all ranks."""
