"""Every kernel compiles to a CUDA binary; that needs no GPU, only triton's own compiler."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_for_cuda.py")


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_every_kernel_compiles_for_cuda(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(SCRIPT.parents[3]), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(SCRIPT), "90"], capture_output=True, text=True, env=environment, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    sources = "".join(path.read_text() for path in (SCRIPT.parents[3] / "train/kernels/fused").glob("*.py"))
    launched = {name for name in sources.replace("[", " ").split() if name.startswith("_") and name.endswith("_kernel")}
    assert launched <= set(done.stdout.split()), launched - set(done.stdout.split())
