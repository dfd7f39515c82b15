"""What is being done, said on standard error while it is done."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field


@dataclass
class Progress:
    """Plain lines; nothing when ``quiet``."""

    quiet: bool = False
    began: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """Say one line, with the seconds since the beginning."""
        if not self.quiet:
            sys.stderr.write(f"fasttrain-doctor [{time.monotonic() - self.began:3.0f} s] {text}\n")
            sys.stderr.flush()
