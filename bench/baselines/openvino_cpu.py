"""OpenVINO's CPU plugin: products with compressed weights (INT8 and FP8 E4M3), decompressed as they are multiplied."""

import numpy as np
from worker import Layer, Way, Worker, serve


def make() -> Worker:
    import openvino as ov
    from openvino import opset13 as ops

    core = ov.Core()
    threads = [1]

    class Compressed(Way):
        schemes = ("int8", "fp8_w8a16")
        name = "OpenVINO MatMul, compressed weights"

        def prepare(self, layer: Layer) -> tuple:
            n, k = layer.codes.shape
            if layer.is_int8:
                codes = ops.constant(layer.codes)
            else:
                tensor = ov.Tensor(ov.Type.f8e4m3, ov.Shape([n, k]))
                tensor.data.view(np.uint8)[...] = layer.codes
                codes = ov.op.Constant(tensor)
            x = ops.parameter([-1, k], np.float32)
            weight = ops.multiply(ops.convert(codes, "f32"), ops.constant(layer.scales[:, None]))
            model = ov.Model([ops.matmul(x, weight, False, True)], [x])
            settings = {"INFERENCE_NUM_THREADS": threads[0], "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
            settings["ENABLE_CPU_PINNING"] = False
            request = core.compile_model(model, "CPU", settings).create_infer_request()
            return request, {}

        def call(self, prepared: tuple, x: np.ndarray) -> np.ndarray:
            request, cache = prepared
            if cache.get("x") is not x:
                request.set_input_tensor(ov.Tensor(x, shared_memory=True))
                cache["x"] = x
            request.infer()
            return request

        def result(self, prepared: tuple, x: np.ndarray, y: object) -> np.ndarray:
            return y.get_output_tensor().data

    def set_threads(count: int) -> None:
        threads[0] = count

    return Worker(f"openvino {ov.__version__.split('-')[0]}", [Compressed()], set_threads)


serve(make)
