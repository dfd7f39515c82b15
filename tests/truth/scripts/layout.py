"""How doses and notes are laid out: what the planted scripts and the runner agree on."""

import struct

# The file of doses holds one double for each: seconds per step to spend there.
PLACES = ("read", "decode", "pool", "collate", "transform", "lock", "sample", "spread", "forward", "backward",
          "optimizer", "sync", "checkpoint", "logging", "eval", "gc", "python")  # fmt: skip
# The parts of a step that the script's own stopwatch tells apart.
PARTS = ("data", "forward", "backward", "optimizer", "sync", "checkpoint", "logging", "eval", "gc", "python")
NOTE = struct.Struct("<q4d")  # code, start, wall, CPU, queue; seconds
# Codes: the number of a place, STOPWATCH + the number of a part, a step's begin, one item or collation.
STOPWATCH, BORDER, FETCHED = 100, 200, 300
