"""What every test of training begins with, whatever ran before it in this process and on how many cores."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _alike() -> None:
    """Random numbers from a fixed seed; one thread, so that sums do not depend on the machine."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
