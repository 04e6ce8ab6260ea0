"""Quantizes the linear layers of a whole model in place."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from scaledmm._configs import Scheme
from scaledmm.torch.module import ScaledMMLinear


@dataclass(frozen=True)
class ReplacedLayer:
    """A layer of the model that is quantized now."""

    name: str
    kernel: str
    dense_bytes: int
    packed_bytes: int


def quantize_model_(
    model: nn.Module, scheme: Scheme = "int8", *, skip: Sequence[str] = (r"(^|.*\.)lm_head",), **options: Any
) -> list[ReplacedLayer]:
    """Replaces every torch.nn.Linear by a ScaledMMLinear of the same weights, and says which.

    Left alone: layers whose full name matches one of the regular expressions in `skip`, layers whose weight another
    module shares (tied embeddings), and subclasses of nn.Linear, which may compute something else. A layer that stands
    in several places is quantized once. options are those of ScaledMMLinear: weight_scales, block, dtype, kernel.

    Errors: those of ScaledMMLinear; the model may then be replaced in part.
    """
    patterns = [re.compile(pattern) for pattern in skip]
    uses = _weight_uses(model)
    made: dict[int, ScaledMMLinear] = {}
    replaced = []
    for parent_name, parent in list(model.named_modules()):
        for child_name, child in list(parent._modules.items()):
            name = f"{parent_name}.{child_name}" if parent_name else child_name
            if type(child) is not nn.Linear or any(pattern.fullmatch(name) for pattern in patterns):
                continue
            if uses[id(child.weight)] > 1:
                continue
            if id(child) not in made:
                made[id(child)] = ScaledMMLinear.from_linear(child, scheme, **options)
            layer = made[id(child)]
            setattr(parent, child_name, layer)
            replaced.append(ReplacedLayer(name, layer.linear.kernel, child.weight.nbytes, layer.linear.packed_bytes))
    return replaced


def _weight_uses(model: nn.Module) -> dict[int, int]:
    """How many modules hold each parameter."""
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return uses
