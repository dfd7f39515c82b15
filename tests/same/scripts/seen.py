"""Prints what a script can see of its process, its libraries and its own objects: one line a fact."""

import sys

from seen_process import modules, process
from seen_training import training

if __name__ == "__main__":
    process()
    modules("at first")
    training()
    process()
    sys.stdout.flush()
