# The front door. Building is CMake's and Ninja's business (CMakeLists.txt); these targets only call them.

BUILD ?= build
CUDA ?= auto
MLX ?= auto
PREFIX ?= /usr/local
DESTDIR ?=

.DEFAULT_GOAL := all
.PHONY: all demo demo-real check test test-whole test-gpu cross-macos fuzz coverage install uninstall package dist wheel clean help

all:
	@tools/bootstrap.sh build
	@. tools/cuda.sh && . tools/mlx.sh && cuda=$$(cuda_options "$(CUDA)") && mlx=$$(mlx_options "$(MLX)" "$(BUILD)") && \
		tools/build.sh "$(BUILD)" product $$cuda $$mlx

demo: all
	"$(BUILD)/kakeya" run --prompt-file examples/needle-60.txt
	"$(BUILD)/kakeya" run --image examples/code.png 'Question: what is the secret code? Answer:'

demo-real: all
	@model=$$(BUILD="$(BUILD)" tools/real_model.sh quiet) && \
		"$(BUILD)/kakeya" run --model "$$model" --raw --max-tokens 64 "The lighthouse keeper opened the door and"

check:
	@BUILD="$(BUILD)" tools/check.sh

test:
	@BUILD="$(BUILD)" tools/run_tests.sh

test-whole:
	@WHOLE_SWEEPS=1 BUILD="$(BUILD)" tools/run_tests.sh

# Needs a CUDA toolkit and a device.
test-gpu:
	@BUILD="$(BUILD)-gpu" tools/test_gpu.sh

cross-macos:
	@tools/cross_macos.sh build-macos

fuzz:
	@tools/fuzz.sh $${SECONDS_PER_TARGET:-600}

coverage:
	@tools/coverage.sh

install: all
	DESTDIR="$(DESTDIR)" cmake --install "$(BUILD)" --prefix "$(PREFIX)"

uninstall:
	@tools/uninstall.sh "$(BUILD)" "$(DESTDIR)"

package: all
	@tools/bootstrap.sh package
	@. tools/cuda.sh && . tools/mlx.sh && cuda=$$(cuda_options "$(CUDA)") && mlx=$$(mlx_options "$(MLX)" "$(BUILD)") && \
		tools/build.sh "$(BUILD)" product $$cuda $$mlx -DKAKEYA_PLUGINS=ON
	@tools/package.sh "$(BUILD)"

dist:
	@tools/dist.sh "$(BUILD)"

# The Python package; Debian packages and packages of PyPI that it needs are installed first.
wheel:
	@BUILD="$(BUILD)" tools/wheel.sh

clean:
	rm -rf build build-sanitize build-threads build-fuzz build-coverage build-arm64 build-macos build-cuda build-gpu build-mlx
	@for directory in "$(BUILD)" "$(BUILD)-gpu"; do [ ! -f "$$directory/CMakeCache.txt" ] || rm -rf "$$directory"; done

help:
	@echo "make            build $(BUILD)/kakeya (missing Debian packages are installed first, each by name); the CUDA backend is"
	@echo "                part of it where a CUDA compiler and a device are; CUDA=on or CUDA=off decides otherwise"
	@echo "                MLX=auto takes libmlx where it is installed, MLX=on installs it into $(BUILD), MLX=off leaves it out"
	@echo "make demo       build, then answer a question about a 1,600-token text, and one about a picture, with the bundled model"
	@echo "make demo-real  the same with a public model, Gemma 3 270M, which continues a text: 253 MB are downloaded once, to"
	@echo "                \$$KAKEYA_CACHE or $(BUILD)/real; Google's Gemma terms hold for it"
	@echo "make check      build and run the unit and command-line tests, long sweeps cut short: the loop while writing"
	@echo "make test       build and run every test; the last line counts them"
	@echo "make test-whole the same with every repetition of long sweeps, under sanitizers, too: hours"
	@echo "make test-gpu   build the CUDA backend and run its tests on the device of this machine"
	@echo "make cross-macos compile and link the program for Apple silicon with zig and libmlx, packages of 150 MB from PyPI"
	@echo "make fuzz       fuzz every parser, SECONDS_PER_TARGET=600 seconds each"
	@echo "make coverage   line coverage of the unit tests, report in build-coverage/"
	@echo "make install    into PREFIX=$(PREFIX) (DESTDIR is honoured); make uninstall removes it again"
	@echo "make package    Debian packages: program with a service for systemd, library, headers, demo model, and the CUDA backend"
	@echo "                if it is built (CUDA=on); in $(BUILD)/packages/"
	@echo "make dist       the archive of the sources that are committed, the same bytes each time, in $(BUILD)/dist/"
	@echo "make wheel      the Python package with the program and the demo model, in $(BUILD)/wheels/"
	@echo "make clean      remove every build directory"
