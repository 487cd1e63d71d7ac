"""The most floating-point operations a second that a device can do, for model FLOP utilisation (MFU)."""

from __future__ import annotations

import functools
import re
import time

import torch

_BF16_TFLOPS = {
    "B200": 2250.0,
    "H200": 989.0,
    "GB200": 2500.0,
    "GH200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "A10G": 70.0,
    "A10": 125.0,
    "RTX 4090": 165.0,
    "RTX 3090": 71.0,
}
"""Dense BF16 and FP16 products with FP32 sums, from NVIDIA's data sheets; the first name whose words a device's name contains holds."""
_SIZE, _ROUNDS = 1024, 4


@functools.cache
def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a device for products of a dtype: its data sheet's for BF16 and FP16 where known, else measured by a square product."""
    if device.type == "cuda" and dtype != torch.float32:
        name = torch.cuda.get_device_name(device)
        for known, tflops in _BF16_TFLOPS.items():
            if re.search(rf"\b{known}\b", name):
                return tflops * 1e12
    least = _measured(device, torch.float32) if device.type == "cpu" else 0.0  # CPUs without FP16 or BF16 units compute in FP32
    return max(least, _measured(device, dtype))


def _measured(device: torch.device, dtype: torch.dtype) -> float:
    size = _SIZE * (8 if device.type == "cuda" else 1)
    left = torch.ones(size, size, dtype=dtype, device=device)
    best = float("inf")
    for _ in range(_ROUNDS):  # the first also pays for warming up
        began = time.perf_counter()
        left @ left
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return 2.0 * size**3 / best
