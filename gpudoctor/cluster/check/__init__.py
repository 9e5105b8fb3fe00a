"""`gpudoctor cluster check`: many live nodes, checked and measured against each other."""

# what may start a process on each node; here, since the command line imports nothing else of this room
LAUNCHERS = ("slurm", "torchrun", "mpi", "ray", "k8s")
