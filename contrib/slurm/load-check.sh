#!/bin/bash -p
# By hand or by your own automation, as root on a node that gpudoctor drained for a hardware fault and that is idle: checks it
# under load (level standard, which needs torch). Only if it passes do the next health checks return the node.
# -p: import no functions and no BASH_ENV from the environment
# shellcheck source-path=SCRIPTDIR source=gpudoctor-hooks.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/gpudoctor-hooks.sh"

exec "$(path_of_gpudoctor)" slurm load
