"""`gpudoctor cluster check`: checks many live nodes and measures between them."""

# what can start a process on each node; here because the command line imports nothing else of this package
LAUNCHERS = ("slurm", "torchrun", "mpi", "ray", "k8s")
