"""Checkpoint folders as mappings from layer names to layers."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaledmm import _core
from scaledmm._core import Array, LayerRecord, Linear, Selection, StoredTensor
from scaledmm._types import ArrayLike, DTypeLike


class CheckpointLayer:
    """A layer of a checkpoint, packed when it is first used.

    Without a dtype given to load(), its input may be f32, bf16 or f16 and the output is of the same dtype: the layer
    is packed once for each of them that it meets.
    """

    def __init__(self, checkpoint: "Checkpoint", names: tuple[str, ...]) -> None:
        self._checkpoint = checkpoint
        self._names = names
        self._linears: dict[Any, Linear] = {}

    def __call__(self, x: ArrayLike, out: ArrayLike | None = None, *, threads: int = 0, stream: Any = None) -> Any:
        """y = x W^T (+ bias), as Linear.__call__."""
        dtype = getattr(x, "dtype", None)
        linear = self._linears.get(dtype)
        if linear is None:
            linear = self._linears[dtype] = self.linear(dtype)
        return linear(x, out, threads=threads, stream=stream)

    def linear(self, dtype: DTypeLike | None = None) -> Linear:
        """The packed layer for inputs of a dtype; None: the dtype of load(), else the model's.

        Errors: UnsupportedError with every kernel's reason, CheckpointError.
        """
        return self._checkpoint._linear(self._names, dtype)

    @property
    def records(self) -> list[LayerRecord]:
        """What the checkpoint says of the layer, or of each part."""
        return [self._checkpoint.layer(name) for name in self._names]

    def explain(self, device: str | None = None) -> Selection:
        """Every kernel's answer for the layer with the model's dtype; of fused parts, for the first.

        device: as in scaledmm.explain; None: that of load().
        """
        config = self.records[0].config
        if config is None:
            raise _core.UnsupportedError(f"layer {self._names[0]} is dense: only quantized layers run here")
        return _core.explain(config, device or self._checkpoint._device, **self._checkpoint._choice)

    def __repr__(self) -> str:
        return f"<CheckpointLayer {'+'.join(self._names)}: {self.records[0].scheme}>"


class Checkpoint(Mapping[str, CheckpointLayer]):
    """An open checkpoint folder: its quantized layers by name. Opening reads headers only."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: DTypeLike | None,
        device: str,
        options: dict[str, Any],
        choice: dict[str, Any],
    ):
        self._path = Path(path)
        self._options = options
        self._choice = choice
        self._device = device
        self._follows_input = dtype is None
        self._folder = _core.open_checkpoint(self._path, dtype=dtype, **options)
        self._folders: dict[str, _core.CheckpointFolder] = {}
        self._layers: dict[tuple[str, ...], CheckpointLayer] = {}
        self._linears: dict[tuple[tuple[str, ...], str], Linear] = {}
        self._names = [layer.name for layer in self._folder.layers if layer.quantized]

    def __getitem__(self, name: str) -> CheckpointLayer:
        """Errors: CheckpointError for an unknown name, UnsupportedError for a dense layer."""
        return self.fused([name])

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def fused(self, names: Sequence[str]) -> CheckpointLayer:
        """Several layers of one scheme with the same input as one, outputs side by side: q, k, v; gate, up."""
        for name in names:
            if not self.layer(name).quantized:
                raise _core.UnsupportedError(f"layer {name} is dense: only quantized layers run here")
        key = tuple(names)
        return self._layers.setdefault(key, CheckpointLayer(self, key))

    def layer(self, name: str) -> LayerRecord:
        """What the checkpoint says of a layer, dense ones included."""
        return self._folder.layer(name)

    @property
    def layers(self) -> list[LayerRecord]:
        """Every linear layer, dense ones included."""
        return self._folder.layers

    @property
    def tensors(self) -> list[StoredTensor]:
        return self._folder.tensors

    def tensor(self, name: str) -> Array:
        """A tensor of the files, mapped: read-only and without a copy."""
        return self._folder.tensor(name)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def config_json(self) -> str:
        return self._folder.config_json

    @property
    def model_dtype(self) -> str:
        return self._folder.model_dtype

    @property
    def warnings(self) -> list[str]:
        return self._folder.warnings

    def verify(self) -> list[str]:
        """One line for each value that breaks a rule of its format; empty when the checkpoint is sound."""
        return self._folder.verify()

    def _linear(self, names: tuple[str, ...], dtype: DTypeLike | None) -> Linear:
        model_dtype = self._folder.model_dtype
        wanted = model_dtype if dtype is None or not self._follows_input else _core.dtype_name(dtype)
        key = (names, wanted)
        if key not in self._linears:
            self._linears[key] = self._folder_for(wanted).linear(list(names), device=self._device, **self._choice)
        return self._linears[key]

    def _folder_for(self, dtype: str) -> _core.CheckpointFolder:
        if dtype == self._folder.model_dtype:
            return self._folder
        if dtype not in self._folders:
            self._folders[dtype] = _core.open_checkpoint(self._path, dtype=dtype, **self._options)
        return self._folders[dtype]

    def __repr__(self) -> str:
        method = self._folder.quant_method or "not quantized"
        return f"<Checkpoint {self._path}: {method}, {len(self)} quantized layers>"


def load(
    path: str | os.PathLike[str],
    *,
    dtype: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    device: str = "cpu",
    use_mmap: bool = True,
    follow_symlinks: bool = True,
    lenient: bool = False,
    kernel: str | None = None,
    backend: str | None = None,
    disabled: Sequence[str] | None = None,
) -> Checkpoint:
    """Opens a checkpoint folder: load(path)["model.layers.0.self_attn.q_proj"](x).

    dtype fixes what layers take; left out, they take f32, bf16 and f16. out_dtype fixes what they give; left out, what
    they take. device is where layers run: "cpu", "cuda:0". use_mmap=False reads tensors instead of mapping files,
    lenient leaves out layers that contradict the configuration, with a warning. kernel, backend and disabled choose
    kernels as in select().

    Errors: CheckpointError naming file and tensor, UnsupportedError for a recognised format that is not W8A8 or W8A16,
    OSError.
    """
    options = {"out_dtype": out_dtype, "use_mmap": use_mmap, "follow_symlinks": follow_symlinks, "lenient": lenient}
    choice = {"kernel": kernel, "backend": backend, "disabled": disabled}
    return Checkpoint(path, dtype, device, options, choice)
