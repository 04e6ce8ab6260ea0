"""onnxruntime's INT8 products on the CPU: DynamicQuantizeMatMul with s8 weights, with u8 weights in exact sums, and a
dense f32 product."""

import numpy as np
from worker import Layer, Way, Worker, serve


def make() -> Worker:
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    threads = [1]

    def session(nodes: list, constants: list, k: int, n: int, options: dict[str, str]) -> object:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", k])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", n])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph(nodes, "layer", [x], [y], constants)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads[0]
        settings.log_severity_level = 3
        for key, value in ({"session.intra_op.allow_spinning": "0"} | options).items():
            settings.add_session_config_entry(key, value)
        return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])

    class OnnxWay(Way):
        def call(self, prepared: object, x: np.ndarray) -> np.ndarray:
            return prepared.run(None, {"x": x})[0]

    class DynamicQuantize(OnnxWay):
        """x quantized to u8 with one scale for all rows; weights per channel."""

        schemes = ("int8",)

        def __init__(self, exact: bool):
            self.exact = exact
            self.name = "onnxruntime DynamicQuantizeMatMul" + (", u8 weights, exact" if exact else ", s8 weights")

        def prepare(self, layer: Layer) -> object:
            n, k = layer.codes.shape
            # Sums of u8 x s8 pairs saturate in 16 bits before AVX-512 VNNI; u8 weights with this setting do not.
            codes = (layer.codes.astype(np.int16) + 128).astype(np.uint8) if self.exact else layer.codes
            constants = [
                numpy_helper.from_array(np.ascontiguousarray(codes.T), "w"),
                numpy_helper.from_array(layer.scales, "scale"),
            ]
            inputs = ["x", "w", "scale"]
            if self.exact:
                constants.append(numpy_helper.from_array(np.full(n, 128, np.uint8), "zero"))
                inputs.append("zero")
            node = helper.make_node("DynamicQuantizeMatMul", inputs, ["y"], domain="com.microsoft")
            return session([node], constants, k, n, {"session.x64quantprecision": "1"} if self.exact else {})

    class Dense(OnnxWay):
        """Dequantized once; f32 MatMul."""

        schemes = ("int8", "fp8_w8a16", "fp8_w8a8")
        name = "onnxruntime f32 MatMul, dequantized before"

        def prepare(self, layer: Layer) -> object:
            n, k = layer.codes.shape
            constant = numpy_helper.from_array(np.ascontiguousarray(layer.dense().T), "w")
            return session([helper.make_node("MatMul", ["x", "w"], ["y"])], [constant], k, n, {})

        def weight_bytes(self, layer: Layer) -> int:
            return 4 * layer.codes.size

    def set_threads(count: int) -> None:
        threads[0] = count

    ways: list[Way] = [DynamicQuantize(True), DynamicQuantize(False), Dense()]
    return Worker(f"onnxruntime {onnxruntime.__version__}", ways, set_threads)


serve(make)
