"""What a training loop is written down as: its body, and what is to be found in it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from tests.watched import Seen

SGD = "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)\n"
LEARN = "opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()\n"


@dataclass(frozen=True)
class Shape:
    """A loop, begun with ``watched.HEAD``, and what is to be found in it.

    ``steps`` is the exact number of whole steps; ``batches`` the mean of a step's; ``roles`` those of its loaders;
    ``loop`` what the line of the loop begins with; ``check`` looks at whatever else is particular to it.
    """

    name: str
    body: str
    steps: int
    found_by: str = "loader"
    batches: float = 1.0
    roles: tuple[str, ...] = ("train",)
    code: int = 0
    loop: str = "for x, y in DataLoader("
    check: Callable[[Seen], None] | None = None

    @property
    def script(self) -> str:
        """The body as it is run, after ``watched.HEAD``."""
        shared, rest = (SGD, self.body.removeprefix(SGD)) if self.body.startswith(SGD) else ("", self.body)
        return shared + textwrap.dedent(rest)
