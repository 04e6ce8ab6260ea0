"""What the plugin did, as one log line."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

# Below vLLM's logger, so that its handlers print this.
_logger = logging.getLogger("vllm.scaledmm")
_waiting: list[str] = []


class Moved(Exception):
    """Something in vLLM is not where this plugin knows it to be."""


@dataclass
class Report:
    """Collects what was put in place, and what was not."""

    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def replaced(self, what: str) -> None:
        self.done.append(what)

    def stand_aside(self, what: str, error: Exception) -> None:
        text = str(error) if isinstance(error, Moved) else f"{type(error).__name__}: {error}"
        self.problems.append(f"{what} ({text})")

    def log(self) -> None:
        """Warns at once. What was done is said once logging is set up: vLLM loads plugins before that."""
        if self.problems:
            _logger.warning("scaledmm stands aside, vLLM's own code stays for: %s", "; ".join(self.problems))
        if self.done:
            _waiting.append("scaledmm: " + "; ".join(self.done))
        if _logger.hasHandlers():
            say_what_waits()


def say_what_waits() -> None:
    while _waiting:
        _logger.info("%s", _waiting.pop(0))
