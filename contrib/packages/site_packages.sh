#!/bin/sh
# site_packages.sh FOLDER PROCESSOR REQUIREMENT...
# Installs into one folder what every Python from 3.10 to 3.14 on Linux (glibc 2.17 or newer) imports: the name of a
# compiled module says which Python it is for, so that they lie side by side. PROCESSOR: x86_64 or aarch64, this
# machine's or not. Nothing is compiled here, and nothing of this machine gets in.
set -eu
folder=$1 processor=$2
shift 2
work=$folder.of-each-python # beside the folder: files are linked, not copied
trap 'rm -rf "$work"' EXIT
rm -rf "$folder" "$work"
mkdir -p "$folder" "$work"

# one version of each package for all Pythons: they share what is not compiled
printf '%s\n' "$@" | uv pip compile --quiet --universal --python-version 3.10 --fork-strategy fewest \
  --no-annotate --no-header --constraint constraints.txt --output-file "$work/locked.txt" -
for python in 3.10 3.11 3.12 3.13 3.14; do
  uv pip install --quiet --no-deps --target "$work/$python" --python-version "$python" \
    --python-platform "$processor-manylinux2014" --only-binary :all: --no-compile-bytecode --link-mode hardlink \
    --requirement "$work/locked.txt"
  cp -rlf "$work/$python/." "$folder"
done
rm -rf "${folder:?}/bin" "$folder/.lock"
# who installed it, and from where on this machine, is nothing that a package tells
find "$folder" -path '*.dist-info/*' \( -name direct_url.json -o -name uv_cache.json -o -name REQUESTED \) -delete
