"""PyTorch on the CPU: dynamically quantized linear layers (FBGEMM, oneDNN), _int_mm, _scaled_mm, and dense products."""

import numpy as np
from worker import Layer, Way, Worker, serve


def make() -> Worker:
    import torch

    torch.set_grad_enabled(False)
    f32, bf16 = torch.float32, torch.bfloat16

    class TorchWay(Way):
        x_dtype = f32

        def activations(self, x: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(x).to(self.x_dtype)

        def result(self, prepared, x, y: torch.Tensor) -> np.ndarray:
            return y.float().numpy()

    class Dense(TorchWay):
        """Dequantized once; the product of the library's f32 or bf16 matrices."""

        schemes = ("int8", "fp8_w8a16", "fp8_w8a8")

        def __init__(self, dtype: torch.dtype):
            self.x_dtype, self.name = dtype, f"torch {str(dtype).removeprefix('torch.')} linear, dequantized before"

        def prepare(self, layer: Layer) -> torch.Tensor:
            return torch.from_numpy(layer.dense()).to(self.x_dtype)

        def weight_bytes(self, layer: Layer) -> int:
            return layer.codes.size * self.x_dtype.itemsize

        def call(self, prepared: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, prepared)

    class Dynamic(TorchWay):
        """The dynamically quantized linear layer, weights per channel; x has one scale for all rows."""

        schemes = ("int8",)

        def __init__(self, engine: str, reduce_range: bool = False):
            self.engine, self.reduce_range = engine, reduce_range
            self.name = f"torch dynamic quantized linear, {engine}" + (", reduce_range" if reduce_range else "")

        def prepare(self, layer: Layer) -> object:
            torch.backends.quantized.engine = self.engine
            scales = torch.from_numpy(layer.scales).double()
            zeros = torch.zeros(len(layer.scales), dtype=torch.long)
            codes = torch.from_numpy(layer.codes).clone()
            weight = torch._make_per_channel_quantized_tensor(codes, scales, zeros, 0)
            return torch.ops.quantized.linear_prepack(weight, None)

        def call(self, prepared: object, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.quantized.linear_dynamic(x, prepared, self.reduce_range)

    class OneDnn(TorchWay):
        """onednn::qlinear_pointwise, on the oneDNN that torch carries; x was quantized before, u8 with one scale."""

        schemes = ("int8",)
        what = "gemm"
        name = "torch onednn.qlinear_pointwise, u8 x s8"

        def prepare(self, layer: Layer) -> tuple:
            packed = torch.ops.onednn.qlinear_prepack(torch.from_numpy(layer.codes.copy()), None)
            return packed, torch.from_numpy(layer.scales), torch.zeros(len(layer.scales), dtype=torch.int64)

        def activations(self, x: np.ndarray) -> tuple:
            scale = float(np.abs(x).max()) / 127
            return torch.from_numpy((np.rint(x / scale) + 128).astype(np.uint8)), scale

        def call(self, prepared: tuple, x: tuple) -> torch.Tensor:
            weight, scales, zeros = prepared
            return torch.ops.onednn.qlinear_pointwise(
                x[0], x[1], 128, weight, scales, zeros, None, 1.0, 0, f32, "none", [], ""
            )

    class IntMm(TorchWay):
        """torch._int_mm between quantization per row and an epilogue, in torch operators as TorchAO has them."""

        schemes = ("int8",)
        name = "torch._int_mm, quantization and epilogue in torch"

        def prepare(self, layer: Layer) -> tuple:
            return torch.from_numpy(layer.codes.copy()).t(), torch.from_numpy(layer.scales)

        def call(self, prepared: tuple, x: torch.Tensor) -> torch.Tensor:
            scale = x.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
            q = torch.round(x / scale).to(torch.int8)
            return torch._int_mm(q, prepared[0]).float() * scale * prepared[1]

    class ScaledMm(TorchWay):
        """torch._scaled_mm, per row and per channel, after quantization in torch operators."""

        schemes = ("fp8_w8a8",)
        name = "torch._scaled_mm, quantization in torch"
        x_dtype = bf16

        def prepare(self, layer: Layer) -> tuple:
            codes = torch.from_numpy(layer.codes.copy()).view(torch.float8_e4m3fn)
            return codes.t(), torch.from_numpy(layer.scales)[None, :].contiguous()

        def call(self, prepared: tuple, x: torch.Tensor) -> torch.Tensor:
            scale = x.float().abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 448
            q = (x.float() / scale).to(torch.float8_e4m3fn)
            return torch._scaled_mm(q, prepared[0], scale, prepared[1], out_dtype=bf16)

    ways: list[Way] = [
        Dynamic("fbgemm"),
        Dynamic("fbgemm", reduce_range=True),
        Dynamic("onednn"),
        OneDnn(),
        IntMm(),
        ScaledMm(),
        Dense(f32),
        Dense(bf16),
    ]
    return Worker(f"torch {torch.__version__}", ways, torch.set_num_threads)


serve(make)
