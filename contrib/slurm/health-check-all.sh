#!/bin/bash -p
# Slurm has only one HealthCheckProgram: this one runs NHC (or another program) first, then gpudoctor. Each drains with
# its own reason and undoes only its own drains. slurmd kills both after 60 s, so NHC gets 10 s of them (TIMEOUT in
# /etc/default/nhc should be less). It always exits with 0: some versions of slurmd do not register otherwise.
# slurm.conf: HealthCheckProgram=/opt/gpudoctor/slurm/health-check-all.sh
OTHER=/usr/sbin/nhc

if [ -x "$OTHER" ]; then timeout -k 1 10 "$OTHER"; fi
exec "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/gpudoctor-healthcheck.sh"
