"""These tests need torch and vLLM: tools/test_vllm.sh makes the environment. Elsewhere nothing here is collected."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("scaledmm") is None:
    collect_ignore_glob = ["*"]
