"""Functions of vLLM that are wrapped in place, each once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

_MARK = "_scaledmm"


def wrap_once(owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    """Puts wrapper(owner.name) in the place of owner.name. False: that was done before."""
    original = getattr(owner, name)
    if getattr(original, _MARK, False):
        return False
    wrapped = wraps(original)(wrapper(original))
    setattr(wrapped, _MARK, True)
    setattr(owner, name, wrapped)
    return True
