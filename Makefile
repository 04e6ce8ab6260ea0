# make run    the main job: install, build, fetch the model, quantize, plan, run, judge
# make test   everything that can be tested on this machine
# make test-torch   the Python package with PyTorch, in an environment of its own (5.5 GB, made once)
# make test-vllm   the vLLM plugin, in an environment of its own (6.3 GB, made once)
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: run test test-torch test-vllm build bench install format lint clean

# Not the CUDA module: the example runs on the CPU, and nvcc would take a minute.
run: install
	cmake --preset release
	cmake --build --preset release --target scaledmm_cli llama
	tools/run.sh

build: install
	cmake --preset release
	cmake --build --preset release

test: install
	tools/test.sh

test-torch: install
	tools/test_torch.sh

test-vllm: install
	tools/test_vllm.sh

bench: build
	build/release/scaledmm bench --output build/bench.json --html build/bench.html

install:
	tools/install.sh

format:
	git ls-files '*.cpp' '*.hpp' '*.h' | xargs clang-format -i

lint: install
	tools/lint.sh

clean:
	rm -rf build
