"""Puts scaledmm's INT8 and FP8 linear layers ahead of vLLM's own. See docs/vllm.md.

vLLM finds `register` by the entry point group vllm.general_plugins and calls it in each of its processes. Whatever
happens here, vLLM goes on: what cannot be put in place is named in a warning, and vLLM's own kernels stay.
"""

from __future__ import annotations

import os

from scaledmm.vllm.report import Report

__all__ = ["register"]


def register() -> None:
    """Registers the kernels; harmless when called again.

    SCALEDMM_VLLM=0 switches it off, 1 on for GPUs too, where vLLM has good kernels of its own. Left out: on CPUs.
    Errors: none. Logs one line that says what was replaced and why, and a warning for what was not.
    """
    wanted = os.environ.get("SCALEDMM_VLLM", "")
    if wanted == "0":
        return
    report = Report()
    try:
        # Imported here: this needs torch and vLLM, and any of it may be missing or broken.
        from scaledmm.vllm.install import install

        install(report, everywhere=wanted == "1")
    except Exception as error:
        report.stand_aside("all layers", error)
    report.log()
