"""The tests of the package itself need numpy only; those of a framework are collected where it is installed."""

import importlib.util

collect_ignore = []
if importlib.util.find_spec("torch") is None:
    collect_ignore.append("with_torch")
if importlib.util.find_spec("vllm") is None:
    collect_ignore.append("with_vllm")
