#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks of `make lint`: layering, third-party headers, file names, licence lines.

Layering: who may include whom. Third-party headers: each in exactly one product file, so that a dependency is
replaceable and its quirks live in one room. Tests may include anything.
"""
import os
import re
import subprocess
import sys

# layer -> the layers it may include besides itself; larder.h belongs to all.
LAYERS = {
    "store/base": set(),
    "store/codec": {"store/base"},
    "store": {"store/base", "store/codec"},
    "tiers": {"store/base", "store"},
    "ingest": {"store/base", "store/codec", "store", "tiers"},
    "loader": {"store/base", "store/codec", "store", "tiers"},
    "api": {"store/base", "store/codec", "store", "tiers", "ingest", "loader"},
    "tools": set(),
}
# Doors that stand for layers below them: including store/store.h gives base and codec as well.
PUBLIC = "loader/larder.h"

# Headers of the C library and the kernel; anything else in <> is third-party.
SYSTEM = re.compile(
    r"^(sys|linux|arpa|netinet|asm)/|^(assert|cpuid|ctype|dirent|dlfcn|endian|errno|fcntl|float|fnmatch|ftw|getopt|glob|"
    r"grp|immintrin|inttypes|langinfo|libgen|limits|link|locale|math|netdb|nmmintrin|poll|pthread|pwd|sched|semaphore|setjmp|"
    r"signal|spawn|stdalign|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|string|strings|syslog|termios|threads|"
    r"time|ucontext|uchar|unistd|utime|wchar|wctype|wmmintrin|x86intrin|smmintrin|emmintrin|tmmintrin|arm_acle|"
    r"arm_neon)\.h$")
PRODUCT = ("store/", "tiers/", "ingest/", "loader/", "tools/")
CODE = (".c", ".h", ".sh", ".py", ".map")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def files():
    """Tracked and new files, those that git ignores left out."""
    try:
        out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, check=True, universal_newlines=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        out = [os.path.relpath(os.path.join(d, f), ".") for d, _, fs in os.walk(".") for f in fs]
        out = [f for f in out if not f.startswith(("build/", ".git/"))]
    return sorted(f for f in out if f and os.path.isfile(f))


def layer(path):
    if path.startswith("loader/python/") or path in ("loader/api.c", "loader/api_int.h"):
        return "api"
    for name in sorted(LAYERS, key=len, reverse=True):
        if path.startswith(name + "/"):
            return name
    return None


def includes(path):
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            found = INCLUDE.match(line)
            if found:
                yield number, found.group(1) == "<", found.group(2)


def check_layers(path, say):
    mine = layer(path)
    for number, angled, target in includes(path):
        where = "%s:%d" % (path, number)
        if angled:
            continue
        if not os.path.exists(target):
            say(where, 'includes "%s", which is no file: write includes from the root, as "store/store.h"' % target)
            continue
        if mine is None or target == PUBLIC:
            continue
        theirs = layer(target)
        if path == PUBLIC:
            say(where, "larder.h includes C standard headers only")
        elif mine == "tools" and theirs != "tools":
            say(where, "tools include %s only, not %s" % (PUBLIC, target))
        elif theirs is None:
            say(where, "product files do not include %s" % target)
        elif theirs != mine and not (mine == "api" and theirs == "loader") and theirs not in LAYERS[mine]:
            say(where, "%s may not include %s (%s): see the layers in tests/lint.py" % (mine, theirs, target))
        elif target.endswith("_int.h") and os.path.dirname(target) != os.path.dirname(path):
            say(where, "%s is private to %s/" % (target, os.path.dirname(target)))


def check_third_party(product, say):
    users = {}
    for path in product:
        for _, angled, target in includes(path):
            if angled and not SYSTEM.match(target):
                users.setdefault(target, set()).add(path)
    for header, paths in sorted(users.items()):
        if len(paths) > 1:
            say("<%s>" % header, "a third-party header belongs to one file, here: " + ", ".join(sorted(paths)))


def check_names(paths, say):
    seen = {}
    for path in paths:
        name = os.path.basename(path)
        if not name.endswith((".c", ".h")):
            continue
        if name in seen:
            say(path, "file names are unique in the tree; there is also " + seen[name])
        seen[name] = path


def check_licence(path, say):
    with open(path, encoding="utf-8") as f:
        head = [f.readline() for _ in range(3)]
    if not any("SPDX-License-Identifier: Apache-2.0" in line for line in head):
        say(path, "has no SPDX-License-Identifier: Apache-2.0 in its first lines")


def check_text(path, say):
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if line.rstrip("\n") != line.rstrip("\n").rstrip():
                say("%s:%d" % (path, number), "ends in white space")
            if path.endswith((".c", ".h")) and "\t" in line:
                say("%s:%d" % (path, number), "holds a tab: 4 spaces")


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    faults = []

    def say(where, what):
        faults.append("%s: %s" % (where, what))

    code = [f for f in files() if f.endswith(CODE) and not f.startswith("tests/data/golden")]
    c_files = [f for f in code if f.endswith((".c", ".h"))]
    product = [f for f in c_files if f.startswith(PRODUCT)]
    for path in c_files:
        check_layers(path, say)
    check_third_party(product, say)
    check_names(c_files, say)
    for path in code:
        check_licence(path, say)
        check_text(path, say)
    for fault in faults:
        print(fault)
    passed = 0 if faults else 1
    print("lint: %d files, %s" % (len(code), "%d faults" % len(faults) if faults else "ok"))
    if os.environ.get("TEST_TOTALS"):
        with open(os.environ["TEST_TOTALS"], "a", encoding="utf-8") as f:
            f.write("lint %d %d 0\n" % (passed, 1 - passed))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
