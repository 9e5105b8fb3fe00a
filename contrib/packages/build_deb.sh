#!/bin/sh
# build_deb.sh SITE MAN VERSION PROCESSOR FOLDER
# Writes FOLDER/gpudoctor_VERSION_ARCHITECTURE.deb. SITE: the output of site_packages.sh; MAN: the output of man_pages.py.
# gpudoctor in PATH writes the shell completions. Needs dpkg-deb, and no root.
set -eu
site=$1 man=$2 version=$3 processor=$4 out=$5
here=$(dirname "$0")
case $processor in x86_64) architecture=amd64 ;; aarch64) architecture=arm64 ;; *) architecture=$processor ;; esac
umask 022
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree" # mktemp made it private to this user

install -D -m 755 "$here/gpudoctor" "$tree/usr/bin/gpudoctor"
mkdir -p "$tree/usr/lib"
cp -r "$site" "$tree/usr/lib/gpudoctor"
find "$tree/usr/lib/gpudoctor" -name __pycache__ -prune -exec rm -r {} +
chmod -R u=rwX,go=rX "$tree/usr/lib/gpudoctor"

mkdir -p "$tree/usr/share/man/man1"
cp "$man"/*.1 "$tree/usr/share/man/man1"
gzip -9 --no-name "$tree"/usr/share/man/man1/*.1
for each in bash:bash-completion/completions/gpudoctor zsh:zsh/vendor-completions/_gpudoctor \
  fish:fish/vendor_completions.d/gpudoctor.fish; do
  mkdir -p "$(dirname "$tree/usr/share/${each#*:}")"
  gpudoctor completion "${each%%:*}" >"$tree/usr/share/${each#*:}"
done

# the units contain the path of a virtual environment
mkdir -p "$tree/usr/lib/systemd/system"
for unit in "$here"/../prometheus/*.service "$here"/../prometheus/*.timer; do
  sed 's|/opt/gpudoctor/bin/gpudoctor|/usr/bin/gpudoctor|g' "$unit" >"$tree/usr/lib/systemd/system/$(basename "$unit")"
done

doc=$tree/usr/share/doc/gpudoctor
mkdir -p "$doc/examples"
cp -r "$here/../slurm" "$here/../prometheus" "$doc/examples"
gzip -9 --no-name <"$here/../../CHANGELOG.md" >"$doc/changelog.gz"
(
  echo "gpudoctor: Apache-2.0, the text of which is in /usr/share/common-licenses/Apache-2.0."
  echo "/usr/lib/gpudoctor also holds the Python packages that it needs, each under a licence of its own:"
  cd "$tree/usr/lib/gpudoctor"
  for metadata in *.dist-info/METADATA; do
    licence=$(sed -n '/^$/q; s/^License-Expression: //p; s/^License: //p; s/^Classifier: License :: OSI Approved :: //p' \
      "$metadata" | head -n 1)
    echo "  ${metadata%.dist-info/METADATA}: ${licence:-see its dist-info folder}"
  done
) >"$doc/copyright"

mkdir "$tree/DEBIAN"
cp "$here/postinst" "$here/prerm" "$tree/DEBIAN"
chmod 755 "$tree"/DEBIAN/*
cat >"$tree/DEBIAN/control" <<CONTROL
Package: gpudoctor
Version: $version
Architecture: $architecture
Maintainer: The gpudoctor developers <gpudoctor@example.com>
Section: admin
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f1)
Depends: python3 (>= 3.10), python3 (<< 3.15), libc6 (>= 2.17)
Suggests: bash-completion, gcc, man-db
Homepage: $(sed -n 's/^Repository = "\(.*\)"/\1/p' "$here/../../pyproject.toml")
Description: tells whether a multi-GPU node is fit to train on
 Reads the driver, the PCIe and NVLink wiring, the kernel log and the host, and
 says in under a minute which part is at fault, how that is known and what to do.
 .
 The Python packages that it needs come with it, in /usr/lib/gpudoctor. PyTorch
 does not: without it everything but the collectives and the train works. The
 systemd units are installed and not enabled.
CONTROL
mkdir -p "$out"
dpkg-deb --root-owner-group -Zxz -z3 --build "$tree" "$out/gpudoctor_${version}_$architecture.deb"
