"""storage.*: what training reads from and writes to: free space, mounts, and read rates."""

# level and title of the check in the module of its name: a run of a lower level does not import it
CHECKS = {"storage.read": ("full", "Data is read as fast as the GPUs need it")}
