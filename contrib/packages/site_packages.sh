#!/bin/sh
# site_packages.sh FOLDER PROCESSOR REQUIREMENT...
# Installs the packages for every Python from 3.10 to 3.14 on Linux (glibc 2.17 or newer) into one folder: the file name
# of a compiled module contains its Python version, so that all versions fit side by side. PROCESSOR: x86_64 or aarch64,
# which need not be this machine's. Nothing is compiled here, and nothing from this machine is included.
set -eu
folder=$1 processor=$2
shift 2
work=$folder.of-each-python # beside the folder, on the same disk: files are linked, not copied
trap 'rm -rf "$work"' EXIT
rm -rf "$folder" "$work"
mkdir -p "$folder" "$work"

# one version of each package for all Pythons, since they share the modules that are not compiled
printf '%s\n' "$@" | uv pip compile --quiet --universal --python-version 3.10 --fork-strategy fewest \
  --no-annotate --no-header --constraint constraints.txt --output-file "$work/locked.txt" -
for python in 3.10 3.11 3.12 3.13 3.14; do
  uv pip install --quiet --no-deps --target "$work/$python" --python-version "$python" \
    --python-platform "$processor-manylinux2014" --only-binary :all: --no-compile-bytecode --link-mode hardlink \
    --requirement "$work/locked.txt"
  cp -rlf "$work/$python/." "$folder"
done
rm -rf "${folder:?}/bin" "$folder/.lock"
# the package must not reveal who installed it, and from where on this machine
find "$folder" -path '*.dist-info/*' \( -name direct_url.json -o -name uv_cache.json -o -name REQUESTED \) -delete
