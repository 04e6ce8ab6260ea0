# make run    the main job: install, build, fetch the model, quantize, plan, run, judge
# make test   everything that can be tested on this machine
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: run test build bench install format lint clean

run: build
	tools/run.sh

build: install
	cmake --preset release
	cmake --build --preset release

test: install
	tools/test.sh

bench: build
	build/release/scaledmm bench

install:
	tools/install.sh

format:
	git ls-files '*.cpp' '*.hpp' '*.h' | xargs clang-format -i

lint: install
	tools/lint.sh

clean:
	rm -rf build
