"""Changes in place that may be an update made by hand are seen without a trace in what a script is told."""

from __future__ import annotations

import traceback

import pytest
import torch

from fasttrain_doctor.probe import by_hand


def test_an_error_has_the_traceback_it_had() -> None:
    one, other = torch.ones(3), torch.ones(4)
    with pytest.raises(RuntimeError) as raised:
        by_hand._wrap(torch.Tensor.add_, first=False)(one, other)
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)] == [
        "test_an_error_has_the_traceback_it_had"
    ]
