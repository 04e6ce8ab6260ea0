"""Layers of this package in PyTorch: custom operators, a module, and the quantization of a whole model.

Importing it registers the operators torch.ops.scaledmm.*; it needs torch 2.10 or newer.
"""

from scaledmm._openmp import use_torch_threads
from scaledmm.torch.model import ReplacedLayer, quantize_model_
from scaledmm.torch.module import ScaledMMLinear
from scaledmm.torch.ops import handle, linear

use_torch_threads()

__all__ = ["ReplacedLayer", "ScaledMMLinear", "handle", "linear", "quantize_model_"]
