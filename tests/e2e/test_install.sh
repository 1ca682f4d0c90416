#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make install: the files, what the shared library exports, a program built by pkg-config against both libraries, the
# public header as C99 and C++, and make uninstall leaving nothing.
set -euo pipefail
fail() { echo "test_install: $*"; exit 1; }
mode=$(basename "$BUILD")
build=$(realpath --relative-to=. "$BUILD") # as make was called: nothing is built anew while other tests run it
case $mode in
release | debug) ;;
*) echo "installs release and debug builds, not $mode"; exit 77 ;;
esac
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
make_() { env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make --no-print-directory -s MODE="$mode" BUILD="$build" PREFIX="$tmp/usr" "$@"; }

make_ install
for f in bin/larder lib/liblarder.a lib/liblarder.so.0 include/larder.h lib/pkgconfig/larder.pc share/man/man1/larder.1; do
    [ -e "$tmp/usr/$f" ] || fail "$f was not installed"
done
version=$(sed -n 's/^#define LARDER_VERSION "\(.*\)"/\1/p' loader/larder.h)
[ "$(readlink "$tmp/usr/lib/liblarder.so.0")" = "liblarder.so.$version" ] || fail "liblarder.so.0 is no link to $version"

# exports: each function of the header, and nothing but larder_*
nm -D --defined-only "$tmp/usr/lib/liblarder.so" | awk '{print $3}' | sort >"$tmp/exports"
! grep -v '^larder_' "$tmp/exports" || fail "the shared library exports what is not larder_*"
sed 's|/\*.*||; s|^ \*.*||' loader/larder.h | grep -o '\blarder_[a-z0-9_]*(' | tr -d '(' | sort -u |
    grep -vE '_fn$' >"$tmp/declared"
missing=$(comm -23 "$tmp/declared" "$tmp/exports")
[ -z "$missing" ] || fail "declared and not exported: $missing"

# the header alone
echo '#include <larder.h>' >"$tmp/h.c"
"${CC:-cc}" -std=c99 -pedantic -Wall -Wextra -Werror -I"$tmp/usr/include" -fsyntax-only "$tmp/h.c" || fail "larder.h is not C99"
for cxx in g++ clang++; do
    if command -v $cxx >/dev/null; then
        $cxx -x c++ -std=c++11 -Wall -Wextra -Werror -I"$tmp/usr/include" -fsyntax-only "$tmp/h.c" || fail "larder.h is not C++"
        break
    fi
done

# a program against the shared and the static library
export PKG_CONFIG_PATH=$tmp/usr/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
"${CC:-cc}" tests/examples/epochs.c -o "$tmp/shared" $(pkg-config --cflags --libs larder) -Wl,-rpath,"$tmp/usr/lib"
"${CC:-cc}" tests/examples/epochs.c -o "$tmp/static" -I"$tmp/usr/include" "$tmp/usr/lib/liblarder.a" \
    $(pkg-config --libs --static larder | sed 's|-llarder||')
mkdir -p "$tmp/src/a" "$tmp/src/b"
for i in 1 2 3 4 5; do
    head -c $((i * 1000)) /dev/zero >"$tmp/src/a/$i.bin"
    head -c $((i * 500)) /dev/zero >"$tmp/src/b/$i.bin"
done
"$tmp/usr/bin/larder" ingest "$tmp/src" "$tmp/ds" >/dev/null 2>"$tmp/err" || fail "ingest: $(cat "$tmp/err")"
for p in shared static; do
    "$tmp/$p" "$tmp/ds" 2 >"$tmp/$p.out" || fail "$p program"
    grep -q '^epoch 1: 10 samples' "$tmp/$p.out" || fail "$p program: $(cat "$tmp/$p.out")"
    grep -q 'found again' "$tmp/$p.out" || fail "$p program: $(cat "$tmp/$p.out")"
done

make_ uninstall
left=$(find "$tmp/usr" ! -type d)
[ -z "$left" ] || fail "uninstall left: $left"
echo "test_install: ok"
