#!/bin/bash -p
# HealthCheckProgram runs one program only: this one runs NHC (or yours) first, then gpudoctor. Each drains with a reason
# of its own and takes only that back. slurmd kills all of it after 60 s, so that NHC gets 10 s of them (TIMEOUT in
# /etc/default/nhc should be less). It always exits with 0: some versions of slurmd do not register otherwise.
# slurm.conf: HealthCheckProgram=/opt/gpudoctor/slurm/health-check-all.sh
OTHER=/usr/sbin/nhc

if [ -x "$OTHER" ]; then timeout -k 1 10 "$OTHER"; fi
exec "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/gpudoctor-healthcheck.sh"
