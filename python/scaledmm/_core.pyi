from collections.abc import Sequence
import os
import pathlib
from typing import Any, Final

from scaledmm._types import ArrayLike, DTypeLike, LayerConfig


import collections.abc
import typing

class Error(RuntimeError): ...

class CheckpointError(Error, ValueError): ...

class UnsupportedError(Error): ...

class DeviceError(Error): ...

class GroupShape:
    """
    One scale covers row x col elements; -1 is the whole extent. Activations [M, K] read (token, feature), block weights [N, K] read (N block, K block), and (-1, 1) is per channel: one scale for each output feature.
    """

    def __init__(self, row: int = -1, col: int = -1) -> None: ...

    @property
    def row(self) -> int: ...

    @property
    def col(self) -> int: ...

    def __repr__(self) -> str: ...

    def __str__(self) -> str: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    PER_TENSOR: Final[GroupShape] = ...
    """(-1, -1)"""

    PER_TOKEN: Final[GroupShape] = ...
    """(1, -1)"""

    PER_CHANNEL: Final[GroupShape] = ...
    """(-1, 1)"""

class ScaleDesc:
    """
    What scales are: their dtype, whether they come with the checkpoint, and what one of them covers.
    """

    def __init__(self, group_shape: GroupShape, is_static: bool = True, dtype: DTypeLike = 'f32') -> None: ...

    @property
    def dtype(self) -> str: ...

    @property
    def is_static(self) -> bool: ...

    @property
    def group_shape(self) -> GroupShape: ...

    def __repr__(self) -> str: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

class QuantKey:
    """How a tensor is quantized. Compared by value."""

    def __init__(self, dtype: DTypeLike, scale: ScaleDesc, symmetric: bool = True) -> None: ...

    @property
    def dtype(self) -> str: ...

    @property
    def scale(self) -> ScaleDesc: ...

    @property
    def symmetric(self) -> bool: ...

    def __repr__(self) -> str: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

class Int8ScaledMMLinearLayerConfig:
    """
    A layer with symmetric int8 weights and int8 activations. Activations have one scale from the checkpoint (is_static_input_scheme) or one for each token, and a zero point unless input_symmetric. Weights have a scale for each output feature (is_channelwise), for each logical width, or for blocks (weight_block).
    """

    def __init__(self, *, weight_shape: tuple[int, int], is_static_input_scheme: bool = False, is_channelwise: bool = True, input_symmetric: bool = True, input_dtype: DTypeLike = 'bf16', out_dtype: DTypeLike = 'bf16', weight_block: GroupShape | None = None) -> None: ...

    @property
    def is_static_input_scheme(self) -> bool: ...

    @property
    def is_channelwise(self) -> bool: ...

    @property
    def input_symmetric(self) -> bool: ...

    @property
    def weight_block(self) -> GroupShape | None: ...

    @property
    def weight_shape(self) -> tuple[int, int]:
        """(N, K): output features, input features."""

    @property
    def input_dtype(self) -> str:
        """f32, bf16 or f16."""

    @property
    def out_dtype(self) -> str:
        """f32, bf16 or f16."""

    @property
    def scheme(self) -> str:
        """int8, fp8_w8a8, fp8_w8a16, or one of these with _block."""

    def __repr__(self) -> str: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

class FP8ScaledMMLinearLayerConfig:
    """
    A layer with FP8 weights. Without an activation key (W8A16) the activations stay as they are.
    """

    def __init__(self, *, weight_shape: tuple[int, int], weight_quant_key: QuantKey, activation_quant_key: QuantKey | None = None, input_dtype: DTypeLike = 'bf16', out_dtype: DTypeLike = 'bf16') -> None: ...

    @property
    def weight_quant_key(self) -> QuantKey: ...

    @property
    def activation_quant_key(self) -> QuantKey | None: ...

    @property
    def weight_shape(self) -> tuple[int, int]:
        """(N, K): output features, input features."""

    @property
    def input_dtype(self) -> str:
        """f32, bf16 or f16."""

    @property
    def out_dtype(self) -> str:
        """f32, bf16 or f16."""

    @property
    def scheme(self) -> str:
        """int8, fp8_w8a8, fp8_w8a16, or one of these with _block."""

    def __repr__(self) -> str: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

class Array:
    """
    Memory with a shape and a dtype that numpy may lack, exchanged without copies: numpy(), torch.from_dlpack(), jax.dlpack.from_dlpack().
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index to the next, by dimension."""

    @property
    def dtype(self) -> str:
        """f32, bf16, e4m3fn, ..."""

    @property
    def ndim(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def data_ptr(self) -> int:
        """Address of the first element."""

    @property
    def read_only(self) -> bool: ...

    def numpy(self) -> Any:
        """
        A numpy array of the same memory. bf16 and the 8-bit floats have ml_dtypes' dtypes when that package is installed, else they are uint16 and uint8 codes.
        """

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> Any: ...

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

    def __repr__(self) -> str: ...

def array(x: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """
    Sees an array without a copy. `dtype` says what the elements of an integer array of the same size are: e4m3fn in uint8 or int8, bf16 in uint16. Errors: ValueError for memory of another device and for element types that quantized layers never have; BufferError for arrays that their framework does not export.
    """

def dtype_name(dtype: DTypeLike) -> str:
    """Our name of a dtype: bf16 for torch.bfloat16."""

class KernelInfo:
    """What a kernel is and what it guarantees."""

    @property
    def name(self) -> str: ...

    @property
    def upstream(self) -> str:
        """The upstream classes that it stands for."""

    @property
    def device(self) -> str:
        """cpu, cuda, hip or opencl."""

    @property
    def isa(self) -> str:
        """CPU kernels: the instruction set tier."""

    @property
    def computes(self) -> str:
        """w8a8 or w8a16: what happens to the activations."""

    @property
    def deterministic(self) -> bool: ...

    @property
    def batch_invariant(self) -> bool:
        """A row's bits depend neither on M nor on its place."""

    @property
    def thread_invariant(self) -> bool: ...

    @property
    def accumulator(self) -> str: ...

    @property
    def exactness(self) -> str: ...

    def __repr__(self) -> str: ...

class Device:
    """What a machine can do."""

    @property
    def kind(self) -> str:
        """cpu, cuda, hip or opencl."""

    @property
    def index(self) -> int: ...

    @property
    def description(self) -> str: ...

    @property
    def isa(self) -> str:
        """CPUs: the highest usable instruction set tier."""

    @property
    def notes(self) -> list[str]:
        """Why higher tiers are not usable."""

    @property
    def threads(self) -> int: ...

    @property
    def capability(self) -> int | None:
        """NVIDIA GPUs: compute capability as major * 10 + minor."""

    def __repr__(self) -> str: ...

class BackendStatus:
    """A kind of device that was looked for, and what came of it."""

    @property
    def kind(self) -> str: ...

    @property
    def available(self) -> bool: ...

    @property
    def detail(self) -> str:
        """How many there are, or why there is none."""

    @property
    def devices(self) -> list[Device]: ...

    def __repr__(self) -> str: ...

class Candidate:
    """One kernel's answer."""

    @property
    def kernel(self) -> str: ...

    @property
    def ok(self) -> bool: ...

    @property
    def reason(self) -> str:
        """Why not; empty when ok."""

    @property
    def upstream(self) -> str: ...

    @property
    def computes(self) -> str: ...

    def __repr__(self) -> str: ...

class Selection:
    """
    The outcome of a choice: every candidate in list order, and the one taken.
    """

    @property
    def config(self) -> Int8ScaledMMLinearLayerConfig | FP8ScaledMMLinearLayerConfig: ...

    @property
    def device(self) -> Device: ...

    @property
    def kernel(self) -> str | None:
        """None: nothing fits."""

    @property
    def candidates(self) -> list[Candidate]: ...

    @property
    def warnings(self) -> list[str]: ...

    def error(self) -> str:
        """Every reason in one message, for a selection without a kernel."""

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

def version() -> str:
    """The library's version."""

def kernels() -> list[KernelInfo]:
    """
    Every kernel of this build, best first within a device kind, reference last.
    """

def devices() -> list[BackendStatus]:
    """
    Everything found on this machine, the CPU first, and why the rest was not found.
    """

def device(name: str) -> Device:
    """
    A device by name: cpu (this machine), cpu:avx2 ... cpu:amx, sm90. Errors: ValueError with the known names.
    """

def explain(config: Int8ScaledMMLinearLayerConfig | FP8ScaledMMLinearLayerConfig, device: str = 'cpu', *, kernel: str | None = None, backend: str | None = None, disabled: Sequence[str] | None = None, require_batch_invariant: bool = False) -> Selection:
    """
    Every kernel's answer for a layer. device: see device(). kernel forces one kernel by name, disabled takes some out, backend prefers kernels whose name, ISA or computation begins with that word; left out, SCALEDMM_FORCE_KERNEL, SCALEDMM_DISABLED_KERNELS and SCALEDMM_BACKEND decide. Never raises for "nothing fits". Errors: ValueError for an unknown name.
    """

def select(config: Int8ScaledMMLinearLayerConfig | FP8ScaledMMLinearLayerConfig, device: str = 'cpu', *, kernel: str | None = None, backend: str | None = None, disabled: Sequence[str] | None = None, require_batch_invariant: bool = False) -> str:
    """
    The name of the first kernel that fits, or of the forced one. kernel forces one kernel by name, disabled takes some out, backend prefers kernels whose name, ISA or computation begins with that word; left out, SCALEDMM_FORCE_KERNEL, SCALEDMM_DISABLED_KERNELS and SCALEDMM_BACKEND decide. Errors: UnsupportedError with every reason, ValueError for an unknown name.
    """

def input_quant_key(kernel: str, config: Int8ScaledMMLinearLayerConfig | FP8ScaledMMLinearLayerConfig) -> QuantKey | None:
    """
    The key of activations that the kernel takes quantized; None: it takes none.
    """

def scaled_int8_quant(x: ArrayLike, scale: ArrayLike | float | None = None, zero_point: ArrayLike | int | None = None, symmetric: bool = True) -> tuple[Any, Any, Any]:
    """
    Quantizes activations to int8.

    Shapes: x [..., K] f32, bf16 or f16, any row stride; returns (q [..., K] int8, scale, zero_point). Dynamic (no scale):
    scale is f32 [..., 1], one for each row, and zero_point int32 [..., 1] unless symmetric, else None. Static: scale and
    zero_point are one value each and are returned as they came.
    Units: x is about scale * (q - zero_point).
    Errors: ValueError for shapes and dtypes, and a scale that is not finite and positive.
    """

def scaled_fp8_quant(x: ArrayLike, scale: ArrayLike | float | None = None, *, group: GroupShape = ..., scale_ub: float | None = None, dtype: DTypeLike = 'e4m3fn', ue8m0: bool = False) -> tuple[Any, Any]:
    """
    Quantizes activations to FP8.

    Shapes: x [..., K] f32, bf16 or f16, any row stride; returns (q [..., K] e4m3fn or e4m3fnuz, scale). Dynamic scales are
    f32: group (-1, -1) gives [1], (1, -1) [..., 1], (1, g) [..., ceil(K / g)]. A static scale is one value for all and is
    returned as it came.
    Units: x is about scale * q; scale_ub bounds the largest magnitude of a row; ue8m0 rounds group scales up to powers of two.
    Errors: ValueError for shapes and dtypes, and a scale that is not finite and positive.
    """

def quantize_weight(w: ArrayLike, dtype: DTypeLike, group: GroupShape = ...) -> tuple[Any, Any]:
    """
    Quantizes a weight matrix for a layer, symmetrically.

    Shapes: w [N, K] f32, bf16 or f16, any row stride; returns (codes [N, K], scale f32): [1] for group (-1, -1), [N, 1] for
    (-1, 1), [ceil(N / bn), ceil(K / bk)] for (bn, bk).
    Units: w is about scale * codes.
    Errors: ValueError for shapes and dtypes, and for a weight that is not finite, with its position.
    """

def to_float32(x: ArrayLike, dtype: DTypeLike | None = None) -> Any:
    """
    Floats of any storage type as f32, exact; `dtype` says what the elements of an integer array are. Errors: ValueError for integers without it.
    """

class DenseLinear:
    """
    A layer that a checkpoint leaves dense in bf16, packed once for this CPU.

    Products are exact, sums are f32 and rounded once. A row's bits depend neither on the batch nor on the threads.
    """

    def __init__(self, weight: ArrayLike, *, threads: int = 0) -> None:
        """
        Packs weight [N, K], bf16, which may be freed afterwards.

        threads is for packing, 0 for the default. Errors: ValueError with the shape or dtype.
        """

    def __call__(self, x: ArrayLike, bias: ArrayLike | None = None, *, threads: int = 0) -> Any:
        """
        y = x W^T (+ bias).

        Shapes: x [..., K] f32, bf16 or f16, packed where it has more than two dimensions; bias [N] f32, bf16 or f16; y [..., N] of
        x's dtype and framework. Errors: ValueError with both shapes.
        """

    @property
    def n(self) -> int:
        """Output features."""

    @property
    def k(self) -> int:
        """Input features."""

    @property
    def kernel(self) -> str:
        """Name of the kernel."""

    @property
    def packed_bytes(self) -> int:
        """Bytes of packed weights."""

class Linear:
    """
    A quantized linear layer, packed once for the kernel that was selected for it.

    Threads may share it; packing and applying release the GIL.
    """

    def __init__(self, config: LayerConfig, weight: ArrayLike, weight_scale: ArrayLike | float, *, bias: ArrayLike | None = None, input_scale: ArrayLike | float | None = None, input_zero_point: ArrayLike | int | None = None, input_scale_ub: float | None = None, ue8m0_input_scales: bool = False, logical_widths: Sequence[int] = ..., block_offset_n: int = 0, block_offset_k: int = 0, kernel: str | None = None, backend: str | None = None, disabled: Sequence[str] | None = None, require_batch_invariant: bool = False, device: Any = None, threads: int = 0) -> None:
        """
        Selects a kernel and packs the weights. The arrays may be freed afterwards.

        Shapes: weight [N, K] int8 or FP8 with a contiguous last dimension (uint8 codes are read as the configuration's dtype);
        weight_scale [] or [1] per tensor, [parts] for each logical width, [N], [N, 1] or [1, N] per channel,
        [ceil(N / bn), ceil(K / bk)] in blocks, f32, bf16, f16 or e8m0 (in blocks also uint8 exponents); bias [N] f32, bf16 or
        f16; input_scale and input_zero_point one value, or one for each logical width.
        Units: weights are scale * codes; input_scale_ub bounds the largest magnitude of a token; block offsets are rows and
        columns; threads is for packing, 0 for the default. device is a name ("cpu", "cuda:0") or a torch.device; None: where the
        weight is. For a layer on a GPU the arrays may be in its memory or in the processor's.
        Errors: ValueError with both shapes, UnsupportedError with every kernel's reason.
        """

    def __call__(self, x: ArrayLike, out: ArrayLike | None = None, *, threads: int = 0, stream: Any = None) -> Any:
        """
        y = x W^T (+ bias).

        Shapes: x [..., K] in the layer's input_dtype, y [..., N] in its out_dtype. Any leading dimensions and row strides; the
        last dimension must be contiguous. y is new and of x's framework, or `out`, which is returned. On a GPU x and out are in
        its memory, and the work is put on `stream` and not waited for: an integer or an object with __cuda_stream__, cuda_stream
        or ptr; None: the current stream of x's framework, else torch's.
        Errors: ValueError for shapes, dtypes and strides, with both numbers.
        """

    def apply(self, x: ArrayLike, out: ArrayLike | None = None, *, threads: int = 0, stream: Any = None) -> Any:
        """
        y = x W^T (+ bias).

        Shapes: x [..., K] in the layer's input_dtype, y [..., N] in its out_dtype. Any leading dimensions and row strides; the
        last dimension must be contiguous. y is new and of x's framework, or `out`, which is returned. On a GPU x and out are in
        its memory, and the work is put on `stream` and not waited for: an integer or an object with __cuda_stream__, cuda_stream
        or ptr; None: the current stream of x's framework, else torch's.
        Errors: ValueError for shapes, dtypes and strides, with both numbers.
        """

    def apply_quantized(self, q: ArrayLike, scale: ArrayLike | float, zero_point: ArrayLike | int | None = None, out: ArrayLike | None = None, *, threads: int = 0, stream: Any = None) -> Any:
        """
        The same for activations that were quantized before, as input_quant_key says.

        Shapes: q [..., K]; scale f32 with one value, one for each row, or one for each group of a row; zero_point int32 likewise.
        Units: x is scale * (q - zero_point).
        Errors: ValueError also for a kernel that takes none.
        """

    @property
    def config(self) -> Int8ScaledMMLinearLayerConfig | FP8ScaledMMLinearLayerConfig: ...

    @property
    def name(self) -> str: ...

    @property
    def n(self) -> int:
        """Output features."""

    @property
    def k(self) -> int:
        """Input features."""

    @property
    def input_dtype(self) -> str: ...

    @property
    def out_dtype(self) -> str: ...

    @property
    def device(self) -> str:
        """Where it runs: cpu, or cuda:0."""

    @property
    def kernel(self) -> str:
        """Name of the kernel."""

    @property
    def computes(self) -> str:
        """w8a8 or w8a16."""

    @property
    def input_quant_key(self) -> QuantKey | None:
        """
        The key of quantized activations that apply_quantized takes; None: none.
        """

    @property
    def packed_bytes(self) -> int:
        """Bytes of packed weights."""

    @property
    def warnings(self) -> list[str]:
        """What was done to fuse parts that differ."""

    @property
    def bias(self) -> Array | None:
        """f32 [N], a copy."""

    @property
    def handle(self) -> int:
        """
        A number that names this layer in this process for as long as it lives.
        """

    def refill(self, weight: ArrayLike, weight_scale: ArrayLike | float, *, bias: ArrayLike | None = None, input_scale: ArrayLike | float | None = None, input_zero_point: ArrayLike | int | None = None, input_scale_ub: float | None = None, ue8m0_input_scales: bool = False, logical_widths: Sequence[int] = ..., block_offset_n: int = 0, block_offset_k: int = 0, threads: int = 0) -> None:
        """
        Replaces the weights by others of the same shapes and scheme, with the same kernel.

        Arguments and errors are those of the constructor. Calls in other threads finish with the old weights first.
        """

    def unpack(self) -> Array:
        """The checkpoint's weight codes, [N, K]."""

    def explain(self, device: str | None = None) -> Selection:
        """
        Every kernel's answer for this layer's configuration, on its own device or on another.
        """

    def __repr__(self) -> str: ...

def apply_handle(handle: ArrayLike, x: ArrayLike, n: int, bias: ArrayLike | None = None) -> Any:
    """
    Linear.apply for the layer whose handle is in eight uint8 elements; bias [N] is for a layer that has none. Errors: ValueError also when the layer is gone or has another N.
    """

def apply_handle_quantized(handle: ArrayLike, q: ArrayLike, scale: ArrayLike, zero_point: ArrayLike | None, n: int) -> Any:
    """The same for Linear.apply_quantized."""

class StoredTensor:
    """A tensor of a checkpoint's safetensors files."""

    @property
    def name(self) -> str: ...

    @property
    def stored_dtype(self) -> str:
        """The container's spelling: F8_E4M3."""

    @property
    def dtype(self) -> str | None:
        """Ours; None for types that linear layers never use."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def file(self) -> pathlib.Path: ...

    def __repr__(self) -> str: ...

class LayerRecord:
    """A linear layer as the checkpoint describes it."""

    @property
    def name(self) -> str: ...

    @property
    def quantized(self) -> bool: ...

    @property
    def scheme(self) -> str:
        """int8, fp8_w8a8, ..., or dense."""

    @property
    def config(self) -> Int8ScaledMMLinearLayerConfig | FP8ScaledMMLinearLayerConfig | None:
        """None for a dense layer."""

    @property
    def n(self) -> int:
        """Output features."""

    @property
    def k(self) -> int:
        """Input features."""

    @property
    def format(self) -> str:
        """The dialect."""

    @property
    def weight(self) -> str:
        """Name of the tensor; empty where there is none, as in the fields below."""

    @property
    def weight_scale(self) -> str: ...

    @property
    def input_scale(self) -> str: ...

    @property
    def input_zero_point(self) -> str: ...

    @property
    def bias(self) -> str: ...

    @property
    def warnings(self) -> list[str]: ...

    def __repr__(self) -> str: ...

class CheckpointFolder:
    """An open checkpoint folder; see scaledmm.load."""

    @property
    def path(self) -> pathlib.Path: ...

    @property
    def config_json(self) -> str: ...

    @property
    def quant_method(self) -> str: ...

    @property
    def model_dtype(self) -> str: ...

    @property
    def tensors(self) -> list[StoredTensor]: ...

    @property
    def layers(self) -> list[LayerRecord]: ...

    @property
    def warnings(self) -> list[str]: ...

    def layer(self, name: str) -> LayerRecord: ...

    def has_tensor(self, name: str) -> bool: ...

    def tensor(self, name: str) -> Array:
        """The mapped tensor, read-only and without a copy."""

    def verify(self) -> list[str]:
        """One line for each value that breaks a rule."""

    def linear(self, layers: Sequence[str], *, kernel: str | None = None, backend: str | None = None, disabled: Sequence[str] | None = None, require_batch_invariant: bool = False, device: str = 'cpu', threads: int = 0) -> Linear:
        """The layer of that name, or several side by side as one."""

def open_checkpoint(path: str | os.PathLike[str], *, dtype: DTypeLike | None = None, out_dtype: DTypeLike | None = None, use_mmap: bool = True, follow_symlinks: bool = True, lenient: bool = False) -> CheckpointFolder: ...

def set_num_threads(threads: int) -> None:
    """
    Threads of calls that name no number. 0: SCALEDMM_NUM_THREADS, else the CPUs that this process may use.
    """

def get_num_threads() -> int:
    """Threads of calls that name no number."""

def _use_openmp(parallel: int, max_threads: int) -> None: ...
