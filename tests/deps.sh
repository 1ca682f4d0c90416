#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# deps.sh "PKG-CONFIG NAMES" PACKAGE... - installs the Debian packages that are missing, and only those.
# PACKAGE may be COMMAND=PACKAGE: satisfied by the command. Without apt-get, or with DEPS_PREFIX, it only checks that
# pkg-config knows the libraries.
set -eu
pkgs=$1
shift

check_pkgconfig() {
    local unknown=
    for p in $pkgs; do
        eval "${PKG_CONFIG:-pkg-config} --exists $p" 2>/dev/null || unknown="$unknown $p"
    done
    [ -z "$unknown" ] || echo "deps: pkg-config does not know:$unknown. They are taken from the compiler's own" \
        "search path; give DEPS_PREFIX=folder (a conda-forge environment, for example) or PKG_CONFIG_PATH."
}

if [ -n "${DEPS_PREFIX:-}" ]; then
    check_pkgconfig
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "deps: not a Debian system: install a C compiler and, findable by pkg-config: $pkgs" \
        "(and libjpeg for the demo; lmdb, python3 and clang for tests and benches)"
    check_pkgconfig
    exit 0
fi

have() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
missing=()
for p; do
    case $p in
    *=*) command -v "${p%%=*}" >/dev/null || missing+=("${p#*=}") ;;
    libclang-rt-dev) # Debian 12 has the versioned package only
        dpkg-query -W -f '${db:Status-Status} ${Package}\n' 'libclang-rt-*-dev' 2>/dev/null | grep -q '^installed' ||
            missing+=("$p") ;;
    *) have "$p" || missing+=("$p") ;;
    esac
done
[ ${#missing[@]} -gt 0 ] || exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "deps: run as root: apt-get install --no-install-recommends ${missing[*]/libclang-rt-dev/libclang-rt-14-dev}" >&2
        exit 1
    fi
    root=(sudo)
fi
apt() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q "$@"; }
if [ -z "$(find /var/lib/apt/lists -maxdepth 1 -name '*_Packages*' -mtime -1 2>/dev/null)" ]; then
    apt update
fi
for i in "${!missing[@]}"; do
    if [ "${missing[i]}" = libclang-rt-dev ] && ! apt-cache show libclang-rt-dev >/dev/null 2>&1; then
        missing[i]=libclang-rt-14-dev
    fi
done
# nginx is for the tests, which start it themselves: its package shall not begin to serve this machine.
policy=/usr/sbin/policy-rc.d
if [[ " ${missing[*]} " == *" nginx-light "* ]] && [ ! -e $policy ] && ! command -v nginx /usr/sbin/nginx >/dev/null; then
    printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee $policy >/dev/null
    "${root[@]}" chmod 755 $policy
    trap '"${root[@]}" rm -f $policy; [ ! -d /run/systemd/system ] || "${root[@]}" systemctl -q disable nginx' EXIT
fi
echo "deps: installing ${missing[*]}"
apt install -y --no-install-recommends "${missing[@]}" || { # the lists may be older than the archive
    apt update
    apt install -y --no-install-recommends "${missing[@]}"
}
