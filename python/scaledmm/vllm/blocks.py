"""Block scales of fused layers whose parts are not whole blocks.

vLLM's loader puts the scales of a part at row ceil(first row of the part / block) and gives the layer ceil(N / block)
rows. A part that ends inside a block thus shares its last row of scales with the next part, whose scales replace it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch

_logger = logging.getLogger("vllm.scaledmm")


def scales_by_part(scale: torch.Tensor, widths: Sequence[int], block_n: int) -> tuple[torch.Tensor, int]:
    """Scales for blocks of a height that divides every part, from the rows where the loader put them, and that height.

    Warns where a row of scales was lost in loading.
    """
    if all(width % block_n == 0 for width in widths[:-1]):
        return scale, block_n
    height = math.gcd(block_n, *widths)
    rows: list[int] = []
    first = taken = 0
    for width in widths:
        begin = -(-first // block_n)
        if begin < taken:
            _logger.warning("scaledmm: vLLM has loaded one row of block scales over another (parts %s)", list(widths))
        rows += [begin + row // block_n for row in range(0, width, height)]
        taken = begin + -(-width // block_n)
        first += width
    return scale[rows], height
