"""vLLM's CPU operators: its oneDNN INT8 product with its own quantizer."""

import numpy as np
from worker import Layer, Way, Worker, serve


def make() -> Worker:
    import torch
    import vllm
    import vllm._custom_ops as operators

    torch.set_grad_enabled(False)

    class Int8(Way):
        schemes = ("int8",)
        name = "vLLM onednn_scaled_mm, bf16"

        def prepare(self, layer: Layer) -> tuple:
            codes = torch.from_numpy(layer.codes.copy())
            scales = torch.from_numpy(layer.scales.copy())[None, :]
            handler = operators.create_onednn_scaled_mm(codes.t(), scales, torch.bfloat16, True, False, 32)
            return handler, codes, scales  # which it may still read

        def activations(self, x: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(x).bfloat16()

        def call(self, prepared: tuple, x: torch.Tensor) -> torch.Tensor:
            q, scale, _ = operators.onednn_scaled_int8_quant(x, None, None, True)
            y = torch.empty(x.shape[0], prepared[0].n, dtype=torch.bfloat16)
            operators.onednn_scaled_mm(prepared[0], q, y, scale, None, None, None)
            return y

        def result(self, prepared: tuple, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
            return y.float().numpy()

    return Worker(f"vllm {vllm.__version__}", [Int8()], torch.set_num_threads)


serve(make)
