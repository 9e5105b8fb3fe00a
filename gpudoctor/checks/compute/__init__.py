"""compute.*: measured arithmetic and memory of each device."""
