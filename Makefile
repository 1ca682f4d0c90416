# SPDX-License-Identifier: Apache-2.0
# One Makefile for everything. `make help` lists the targets and the settings.

MODE ?= release
BUILD ?= build/$(MODE)
CC ?= cc
CLANG ?= clang
PYTHON ?= /usr/bin/python3
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
PKG_CONFIG ?= pkg-config
FUZZ_SECONDS ?= 60
JOBS ?= $(shell nproc)
ifeq ($(origin CC),default)
CC := gcc
endif
Q := $(if $(V),,@)
# One line a command; none under make -s.
SAY = $(if $(V)$(findstring s,$(filter-out --%,$(firstword -$(MAKEFLAGS)))),@:,@echo)
SHELL := /bin/bash
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:

VERSION := $(shell sed -n 's/^#define LARDER_VERSION "\(.*\)"/\1/p' loader/larder.h)
SOVERSION := 0

# ---- sources

LIB_SRCS := $(wildcard store/base/*.c store/codec/*.c store/*.c tiers/*.c ingest/*.c loader/*.c)
TOOL_SRCS := $(wildcard tools/*.c)
LIB_OBJS := $(LIB_SRCS:%.c=$(BUILD)/%.o)
TOOL_OBJS := $(TOOL_SRCS:%.c=$(BUILD)/%.o)
UNIT_SRCS := $(wildcard tests/unit/test_*.c)
MODEL_SRCS := $(wildcard tests/model/*.c)
FAULT_SRCS := $(wildcard tests/fault/*.c)
FUZZ := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
CRASH_SRCS := $(wildcard tests/crash/*.c)
BUCKET_SRCS := $(wildcard tests/bucket/test_*.c)
EXAMPLE_SRCS := $(wildcard tests/examples/*.c)
BENCH_SRCS := $(wildcard tests/bench/bench_*.c)
UNIT := $(UNIT_SRCS:%.c=$(BUILD)/%)
MODEL := $(MODEL_SRCS:%.c=$(BUILD)/%)
FAULT := $(FAULT_SRCS:%.c=$(BUILD)/%)
CRASH := $(CRASH_SRCS:%.c=$(BUILD)/%)
BUCKET := $(BUCKET_SRCS:%.c=$(BUILD)/%)
EXAMPLES := $(EXAMPLE_SRCS:%.c=$(BUILD)/%)

# ---- dependencies

# "command=package" is satisfied by the command, a bare name by the Debian package.
DEB_BUILD := gcc libc6-dev make pkg-config=pkgconf librocksdb-dev libzstd-dev liburing-dev libjansson-dev libcurl4-openssl-dev libssl-dev libexpat1-dev \
	libarchive-dev libxxhash-dev zlib1g-dev libjpeg62-turbo-dev libpng-dev libwebp-dev libsndfile1-dev libsoxr-dev
DEB_CHECK := python3 python3-pil djpeg=libjpeg-turbo-progs python3-soundfile clang libclang-rt-dev liblmdb-dev zstd xz-utils nbdkit nbdfuse=libnbd-bin \
	radosgw ceph-mon ceph-osd nginx-light libnginx-mod-http-lua python3-boto3 python3-swift curl openssl
PKGS := rocksdb libzstd liburing jansson libarchive libxxhash zlib libcurl libcrypto expat libjpeg libpng libwebp sndfile soxr

# $(call pkg,--cflags|--libs,name,what to use where pkg-config does not know the name)
pkg = $(shell $(PKG_CONFIG) --exists $(2) 2>/dev/null && $(PKG_CONFIG) $(1) $(2) || echo "$(3)")
ifneq ($(DEPS_PREFIX),)
export PKG_CONFIG_PATH := $(DEPS_PREFIX)/lib/pkgconfig:$(DEPS_PREFIX)/share/pkgconfig:$(PKG_CONFIG_PATH)
PREFIX_CFLAGS := -I$(DEPS_PREFIX)/include
PREFIX_LIBS := -L$(DEPS_PREFIX)/lib -Wl,-rpath,$(DEPS_PREFIX)/lib -Wl,-rpath-link,$(DEPS_PREFIX)/lib
endif
# $(shell) does not see exported make variables: hand the path over by itself.
PKG_CONFIG := $(if $(PKG_CONFIG_PATH),PKG_CONFIG_PATH=$(PKG_CONFIG_PATH) )$(PKG_CONFIG)
DEPS_CFLAGS := $(sort $(PREFIX_CFLAGS) $(foreach p,$(PKGS),$(call pkg,--cflags,$p)))
DEPS_LIBS := $(PREFIX_LIBS) $(foreach p,$(PKGS),$(call pkg,--libs,$p,-l$(patsubst zlib,z,$(p:lib%=%))))

# ---- flags

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes
MODE_CFLAGS_release := -O2 -g -fno-plt
MODE_CFLAGS_debug := -O1 -g
MODE_CFLAGS_asan := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
MODE_CFLAGS_tsan := -O1 -g -fno-omit-frame-pointer -fsanitize=thread
MODE_CFLAGS_cov := -O0 -g --coverage -fprofile-update=atomic
MODE_CFLAGS_fuzz := -O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined \
	-fno-sanitize-recover=all
MODE_LDFLAGS_fuzz := -fsanitize=fuzzer,address,undefined
MODE_LDFLAGS_asan := -fsanitize=address,undefined
MODE_LDFLAGS_tsan := -fsanitize=thread
MODE_LDFLAGS_cov := --coverage
ifeq ($(filter $(MODE),release debug asan tsan cov fuzz),)
$(error MODE=$(MODE): it is one of release, debug, asan, tsan, cov)
endif
CFLAGS ?=
LDFLAGS ?=
ALL_CFLAGS := -std=gnu11 $(WARN) -D_GNU_SOURCE -fPIC -fvisibility=default -pthread -I. $(MODE_CFLAGS_$(MODE)) \
	$(DEPS_CFLAGS) $(CFLAGS)
ALL_LDFLAGS := -pthread $(MODE_LDFLAGS_$(MODE)) $(LDFLAGS)
ALL_LIBS := $(DEPS_LIBS) -lm -ldl
LIB := $(BUILD)/liblarder.a
SO := $(BUILD)/liblarder.so.$(SOVERSION)

# Every object depends on this file, which changes only when the commands would.
FLAGS_TEXT := $(CC) $(ALL_CFLAGS) | $(ALL_LDFLAGS) | $(ALL_LIBS)
FLAGS := $(BUILD)/flags
$(shell mkdir -p $(BUILD); echo '$(FLAGS_TEXT)' | cmp -s - $(FLAGS) || echo '$(FLAGS_TEXT)' >$(FLAGS))

# Allocations and system calls that fault tests replace: tests/fault/fault.h defines __wrap_NAME for each.
WRAPS := malloc calloc realloc posix_memalign aligned_alloc strdup strndup asprintf mmap pthread_create \
	open openat pread preadv2 pwrite pwritev write fsync fdatasync sync_file_range rename renameat renameat2 link linkat \
	unlink unlinkat ftruncate mkdir mkdirat fstat fstatat fdopendir flock
WRAP_FLAGS := $(WRAPS:%=-Wl,--wrap=%)

# ---- build

## all: the library and the larder program (default)
all: lib tools

## lib: liblarder.a and liblarder.so
lib: $(LIB) $(if $(LIB_SRCS),$(SO))

## tools: the larder program
tools: $(if $(TOOL_SRCS),$(BUILD)/larder)

$(BUILD)/tests/examples/%.o: EXTRA := -Iloader # as a user writes it: <larder.h>
$(BUILD)/%.o: %.c $(FLAGS)
	@mkdir -p $(@D)
	$(SAY) "  CC $<"
	$(Q)$(CC) $(ALL_CFLAGS) $(EXTRA) -MMD -MP -c -o $@ $<

# The list of objects is a prerequisite as text, so that a removed source leaves the archive.
$(LIB): $(LIB_OBJS) $(BUILD)/lib.list
	$(SAY) "  AR $@"
	$(Q)rm -f $@; ar rcs $@ $(LIB_OBJS)
$(shell echo '$(LIB_SRCS)' | cmp -s - $(BUILD)/lib.list || echo '$(LIB_SRCS)' >$(BUILD)/lib.list)

$(SO): $(LIB_OBJS) $(BUILD)/lib.list loader/larder.map
	$(SAY) "  LD $@"
	$(Q)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,liblarder.so.$(SOVERSION) -Wl,--version-script=loader/larder.map \
		-o $@ $(LIB_OBJS) $(ALL_LIBS)
	$(Q)ln -sf liblarder.so.$(SOVERSION) $(BUILD)/liblarder.so

$(BUILD)/larder: $(TOOL_OBJS) $(LIB)
	$(SAY) "  LD $@"
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(TOOL_OBJS) $(LIB) $(ALL_LIBS)

# One program for each file under tests/. A file can name extra libraries: /* LIBS: -ljpeg */
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(LIB)
	$(SAY) "  LD $@"
	$(Q)$(CC) $(ALL_LDFLAGS) $(if $(filter tests/fault/%,$(<:$(BUILD)/%=%)),$(WRAP_FLAGS)) -o $@ $< $(LIB) $(ALL_LIBS) \
		$$(sed -n 's|^/\* LIBS: \(.*\) \*/$$|\1|p' tests/$*.c)

# What test_cuda.c finds in place of the driver's library.
STAND_IN := $(BUILD)/tests/unit/stand_in/libcuda.so.1
$(STAND_IN): tests/unit/cuda_stand_in.c $(FLAGS)
	@mkdir -p $(@D)
	$(SAY) "  LD $@"
	$(Q)$(CC) -std=gnu11 $(WARN) -D_GNU_SOURCE -O1 -g -fPIC -pthread -shared -Wl,-soname,libcuda.so.1 -o $@ $<

-include $(LIB_OBJS:.o=.d) $(TOOL_OBJS:.o=.d) $(patsubst %,%.d,$(UNIT) $(MODEL) $(FAULT) $(CRASH) $(BUCKET) $(EXAMPLES) $(FUZZ)) \
	$(BENCH_SRCS:%.c=$(BUILD)/%.d) $(BUILD)/tests/data/mkjpegs.d $(BUILD)/tests/data/pixels.d $(BUILD)/tests/data/sounds.d

# ---- tests

RUN = BUILD=$(abspath $(BUILD)) LARDER=$(abspath $(BUILD))/larder PYTHON=$(PYTHON) JOBS=$(JOBS) \
	FUZZ_SECONDS=$(FUZZ_SECONDS) tests/run.sh
# -j for what we start, unless make was started with -j and shares its slots.
J = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS))
SUITES := lint unit model fault crash e2e bucket fuzz-smoke sanitize-unit

## check: everything a change must pass: deps, build, all suites; the last line counts
check: deps-check
	@MAKE="$(MAKE)" JOBS=$(JOBS) MODE=$(MODE) BUILD=$(BUILD) tests/check.sh $(SUITES)

## unit model fault crash e2e bucket: one suite of tests/ (MODE=debug make unit)
unit: $(UNIT) $(STAND_IN)
	@$(RUN) unit $(UNIT)
model: $(MODEL)
	@$(RUN) model $(MODEL)
fault: $(FAULT) tools
	@$(RUN) fault $(FAULT) $(wildcard tests/fault/test_*.sh)
crash: $(CRASH) tools
	@$(RUN) crash $(CRASH) $(wildcard tests/crash/*.sh tests/crash/test_*.py)
e2e: all $(EXAMPLES) $(STAND_IN) $(BUILD)/tests/data/mkjpegs $(BUILD)/tests/data/pixels $(BUILD)/tests/data/sounds
	@$(RUN) e2e $(wildcard tests/e2e/test_*.sh tests/e2e/test_*.py)
bucket: all $(BUCKET) $(EXAMPLES) $(BUILD)/tests/data/mkjpegs
	@$(subst tests/run.sh,tests/bucket/run.sh,$(RUN)) $(BUCKET) $(wildcard tests/bucket/test_*.sh tests/bucket/test_*.py)

## sanitize: unit, model and fault under ASan+UBSan and under TSan; e2e under ASan+UBSan
SANITIZE := asan.unit asan.model asan.fault asan.e2e tsan.unit tsan.model
sanitize:
	@for s in $(SANITIZE); do echo "== $$s"; \
		$(MAKE) --no-print-directory $(J) MODE=$${s%%.*} BUILD=build/$${s%%.*} $${s#*.} || rc=1; \
	done; exit $${rc:-0}
## sanitize-unit: the unit tests under ASan+UBSan and under TSan (part of check)
sanitize-unit:
	@$(MAKE) --no-print-directory sanitize SANITIZE="asan.unit tsan.unit"

export ASAN_OPTIONS ?= detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS ?= print_stacktrace=1
export LSAN_OPTIONS ?= suppressions=$(abspath tests/lsan.supp):print_suppressions=0
export TSAN_OPTIONS ?= suppressions=$(abspath tests/tsan.supp):halt_on_error=1

## fuzz: each tests/fuzz/fuzz_*.c for FUZZ_SECONDS (60) over its corpus, with clang and libFuzzer
fuzz:
	@$(MAKE) --no-print-directory $(J) MODE=fuzz CC=$(CLANG) BUILD=build/fuzz fuzz-run
## fuzz-smoke: the same, a few seconds each (part of check; skipped without clang)
fuzz-smoke:
	@if echo 'int LLVMFuzzerTestOneInput(const char *d, long n); int LLVMFuzzerTestOneInput(const char *d, long n) { return d == (void *)n; }' | \
		$(CLANG) -fsanitize=fuzzer,address,undefined -x c - -o /dev/null 2>/dev/null; \
	then $(MAKE) --no-print-directory $(J) MODE=fuzz CC=$(CLANG) BUILD=build/fuzz FUZZ_SECONDS=4 fuzz-run; \
	else echo "fuzz: 0 passed, 0 failed, 1 skipped (no $(CLANG) with libFuzzer: make deps-check)"; \
		[ -z "$$TEST_TOTALS" ] || echo "fuzz-smoke 0 0 1" >>"$$TEST_TOTALS"; fi
fuzz-run: $(FUZZ)
	@TEST_TIMEOUT=$$(( $(FUZZ_SECONDS) + 60 )) $(RUN) fuzz $(FUZZ)

## lint: layering, one file per third-party header, unique names, licence lines
lint:
	@if command -v $(PYTHON) >/dev/null; then $(PYTHON) tests/lint.py; else echo "lint: no $(PYTHON)"; exit 1; fi

## cov: line coverage of the product by unit, model, fault and e2e
cov:
	@for s in unit model fault e2e; do $(MAKE) --no-print-directory $(J) MODE=cov BUILD=build/cov $$s || true; done
	@gcov -r -n $$(find build/cov/store build/cov/tiers build/cov/ingest build/cov/loader build/cov/tools -name '*.gcno') \
		2>/dev/null | awk -F"[':% ]+" '/^File/ {f = $$2} /^Lines executed/ && f ~ /[.]c$$/ && f !~ /^tests/ { \
		printf "%6.1f%% of %5d  %s\n", $$3, $$5, f; hit += $$3 * $$5 / 100; all += $$5} f {if (/^Lines|^No exec/) f = ""} \
		END {printf "%6.1f%% of %5d  all\n", all ? 100 * hit / all : 0, all}' | sort -k4

# ---- benches and the demonstration

BENCHES := $(BENCH_SRCS:tests/bench/bench_%.c=%)
BENCH_NAME := $(firstword $(subst /, ,$(BENCH)))
## bench: all benches, or BENCH=name[/case]; one JSON line a case
ifeq ($(MODE),release)
bench: $(if $(BENCH),$(BUILD)/tests/bench/bench_$(BENCH_NAME),$(BENCHES:%=$(BUILD)/tests/bench/bench_%)) tools $(BUILD)/tests/data/mkjpegs
	@for b in $(if $(BENCH),$(BENCH),$(BENCHES)); do \
		BUILD=$(abspath $(BUILD)) LARDER=$(abspath $(BUILD))/larder $(BUILD)/tests/bench/bench_$${b%%/*} $$b || rc=1; \
	done; exit $${rc:-0}
else
bench:
	@$(MAKE) --no-print-directory MODE=release BUILD=build/release bench
endif

DEMO := build/demo
## demo: deps, build, 2,000 JPEG images (or DATA=folder), ingest, three epochs, a table
demo: deps
	@$(MAKE) --no-print-directory $(J) all $(if $(DATA),,$(BUILD)/tests/data/mkjpegs)
	@BUILD=$(BUILD) LARDER=$(BUILD)/larder bash tests/data/demo.sh $(DEMO) '$(DATA)'

# ---- housekeeping

## deps: install what building needs (Debian: apt-get, sudo when not root, only what is missing)
deps:
	@DEPS_PREFIX='$(DEPS_PREFIX)' PKG_CONFIG='$(PKG_CONFIG)' bash tests/deps.sh "$(PKGS)" $(DEB_BUILD)
## deps-check: deps and what the tests need
deps-check:
	@DEPS_PREFIX='$(DEPS_PREFIX)' PKG_CONFIG='$(PKG_CONFIG)' bash tests/deps.sh "$(PKGS)" $(DEB_BUILD) $(DEB_CHECK)

## install: below DESTDIR$(PREFIX); BINDIR, LIBDIR, INCLUDEDIR, MANDIR
install: all
	install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(MANDIR)/man1
	install -m 755 $(BUILD)/larder $(DESTDIR)$(BINDIR)/larder
	install -m 644 $(LIB) $(DESTDIR)$(LIBDIR)/liblarder.a
	install -m 755 $(SO) $(DESTDIR)$(LIBDIR)/liblarder.so.$(VERSION)
	ln -sf liblarder.so.$(VERSION) $(DESTDIR)$(LIBDIR)/liblarder.so.$(SOVERSION)
	ln -sf liblarder.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/liblarder.so
	install -m 644 loader/larder.h $(DESTDIR)$(INCLUDEDIR)/larder.h
	install -m 644 tools/larder.1 $(DESTDIR)$(MANDIR)/man1/larder.1
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|' \
		-e 's|@LIBS_PRIVATE@|$(ALL_LIBS) -pthread|' loader/larder.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/larder.pc

## uninstall: what install put there
uninstall:
	rm -f $(DESTDIR)$(BINDIR)/larder $(DESTDIR)$(LIBDIR)/liblarder.a $(DESTDIR)$(LIBDIR)/liblarder.so \
		$(DESTDIR)$(LIBDIR)/liblarder.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/liblarder.so.$(VERSION) \
		$(DESTDIR)$(INCLUDEDIR)/larder.h $(DESTDIR)$(MANDIR)/man1/larder.1 $(DESTDIR)$(LIBDIR)/pkgconfig/larder.pc

## dist: larder-VERSION.tar.gz of the committed tree
dist:
	git archive --prefix=larder-$(VERSION)/ -o build/larder-$(VERSION).tar.gz HEAD

## format: clang-format over all C
format:
	clang-format -i $$(git ls-files '*.c' '*.h')

## clean: remove build/
clean:
	rm -rf build

## help: this list
help:
	@echo "larder $(VERSION)"
	@sed -n 's/^## \([^:]*\): /  \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 34
	@echo "settings: MODE=release|debug|asan|tsan|cov ($(MODE))  V=1  BUILD=$(BUILD)  CC=$(CC)  CFLAGS=  LDFLAGS=  PREFIX=$(PREFIX)"
	@echo "          DEPS_PREFIX=folder of the dependencies (include/, lib/, lib/pkgconfig), for example a conda environment"

.PHONY: all lib tools check unit model fault crash e2e bucket sanitize sanitize-unit fuzz fuzz-smoke fuzz-run lint cov bench demo deps \
	deps-check install uninstall dist format clean help
