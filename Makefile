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
CRASH_SRCS := $(wildcard tests/crash/*.c)
EXAMPLE_SRCS := $(wildcard tests/examples/*.c)
FUZZ_SRCS := $(wildcard tests/fuzz/fuzz_*.c)
BENCH_SRCS := $(wildcard tests/bench/bench_*.c)
UNIT := $(UNIT_SRCS:%.c=$(BUILD)/%)
MODEL := $(MODEL_SRCS:%.c=$(BUILD)/%)
FAULT := $(FAULT_SRCS:%.c=$(BUILD)/%)
CRASH := $(CRASH_SRCS:%.c=$(BUILD)/%)
EXAMPLES := $(EXAMPLE_SRCS:%.c=$(BUILD)/%)

# ---- dependencies: Debian package, pkg-config name, library to fall back on where a name is unknown

DEB_DEPS := gcc make pkg-config librocksdb-dev libzstd-dev liburing-dev libjansson-dev libarchive-dev libxxhash-dev
DEB_TEST_DEPS := libjpeg62-turbo-dev liblmdb-dev clang libclang-rt-14-dev python3
PKGS := rocksdb libzstd liburing jansson libarchive libxxhash

ifneq ($(DEPS_PREFIX),)
export PKG_CONFIG_PATH := $(DEPS_PREFIX)/lib/pkgconfig:$(DEPS_PREFIX)/share/pkgconfig:$(PKG_CONFIG_PATH)
DEPS_CFLAGS := -I$(DEPS_PREFIX)/include
DEPS_LIBS := -L$(DEPS_PREFIX)/lib -Wl,-rpath,$(DEPS_PREFIX)/lib -Wl,-rpath-link,$(DEPS_PREFIX)/lib
endif
# $(call pkg,--cflags|--libs,name,fallback)
pkg = $(shell $(PKG_CONFIG) --exists $(2) 2>/dev/null && $(PKG_CONFIG) $(1) $(2) || echo "$(3)")
DEPS_CFLAGS += $(foreach p,$(PKGS),$(call pkg,--cflags,$p))
DEPS_LIBS += $(foreach p,$(PKGS),$(call pkg,--libs,$p,-l$(p:lib%=%)))
JPEG_FLAGS = $(call pkg,--cflags --libs,libjpeg,-ljpeg)
LMDB_FLAGS = $(call pkg,--cflags --libs,lmdb,-llmdb)

# ---- flags

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes
MODE_CFLAGS_release := -O2 -g -fno-plt
MODE_CFLAGS_debug := -O1 -g
MODE_CFLAGS_asan := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
MODE_CFLAGS_tsan := -O1 -g -fno-omit-frame-pointer -fsanitize=thread
MODE_CFLAGS_cov := -O0 -g --coverage -fprofile-update=atomic
MODE_LDFLAGS_asan := -fsanitize=address,undefined
MODE_LDFLAGS_tsan := -fsanitize=thread
MODE_LDFLAGS_cov := --coverage
ifeq ($(filter $(MODE),release debug asan tsan cov),)
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

# Allocations and system calls that fault tests replace; tests/fault defines __wrap_NAME for these.
WRAPS := malloc calloc realloc posix_memalign aligned_alloc strdup strndup mmap
WRAP_FLAGS := $(WRAPS:%=-Wl,--wrap=%)

# ---- build

## all: the library and the larder program (default)
all: lib tools

## lib: liblarder.a and liblarder.so
lib: $(LIB) $(if $(LIB_SRCS),$(SO))

## tools: the larder program
tools: $(if $(TOOL_SRCS),$(BUILD)/larder)

$(BUILD)/%.o: %.c $(FLAGS)
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC $<")
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# The list of objects is a prerequisite as text, so that a removed source leaves the archive.
$(LIB): $(LIB_OBJS) $(BUILD)/lib.list
	$(if $(V),,@echo "  AR $@")
	$(Q)rm -f $@; ar rcs $@ $(LIB_OBJS)
$(shell echo '$(LIB_OBJS)' | cmp -s - $(BUILD)/lib.list || echo '$(LIB_OBJS)' >$(BUILD)/lib.list)

$(SO): $(LIB_OBJS) $(BUILD)/lib.list loader/larder.map
	$(if $(V),,@echo "  LD $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,liblarder.so.$(SOVERSION) -Wl,--version-script=loader/larder.map \
		-o $@ $(LIB_OBJS) $(ALL_LIBS)
	$(Q)ln -sf liblarder.so.$(SOVERSION) $(BUILD)/liblarder.so

$(BUILD)/larder: $(TOOL_OBJS) $(LIB)
	$(if $(V),,@echo "  LD $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(TOOL_OBJS) $(LIB) $(ALL_LIBS)

# One program for each file under tests/. A file can name extra libraries: /* LIBS: -ljpeg */
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(LIB)
	$(if $(V),,@echo "  LD $@")
	$(Q)$(CC) $(ALL_LDFLAGS) $(if $(filter tests/fault/%,$(<:$(BUILD)/%=%)),$(WRAP_FLAGS)) -o $@ $< $(LIB) $(ALL_LIBS) \
		$$(sed -n 's|^/\* LIBS: \(.*\) \*/$$|\1|p' tests/$*.c)

-include $(LIB_OBJS:.o=.d) $(TOOL_OBJS:.o=.d) $(UNIT:=.d) $(MODEL:=.d) $(FAULT:=.d) $(CRASH:=.d) $(EXAMPLES:=.d)

# ---- tests

RUN = BUILD=$(abspath $(BUILD)) LARDER=$(abspath $(BUILD))/larder PYTHON=$(PYTHON) JOBS=$(JOBS) tests/run.sh

## unit: the tests of each source file (MODE=debug make unit)
unit: $(UNIT)
	@$(RUN) unit $(UNIT)

.PHONY: all lib tools unit
