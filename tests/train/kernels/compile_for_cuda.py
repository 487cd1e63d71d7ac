"""Compile every Triton kernel to a CUDA binary without a GPU, launching none: run by test_compiles, not collected."""

from __future__ import annotations

import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


class CompileOnly:
    """A driver that names a target and has nothing else."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main(capability: int) -> None:
    driver.set_active(CompileOnly(capability))
    launch = JITFunction.run
    seen: dict[str, int] = {}

    def compile_only(self: JITFunction, *args: object, grid: object, warmup: bool, **kwargs: object) -> object:
        kernel = launch(self, *args, grid=grid, warmup=True, **kwargs)
        seen[self.__name__] = max(seen.get(self.__name__, 0), kernel.metadata.shared)
        if "cubin" not in kernel.asm:
            raise AssertionError(f"{self.__name__}: no binary")
        return kernel

    JITFunction.run = compile_only
    from train.kernels.fused import activation, factored_steps, norm, rotary, row_loss, steps

    x = torch.randn(64, 4096, dtype=torch.bfloat16, requires_grad=True)
    vector = torch.randn(4096, requires_grad=True)
    results = [
        norm.rms_norm(x, vector, 1e-6),
        *norm.add_rms_norm(x, x.float(), vector, 1e-6),
        norm.layer_norm(x, vector, vector, 1e-5),
        norm.layer_norm(x, vector, None, 1e-5),
        activation.swiglu(x[:, :1024], x[:, 1024:2048]),
        *(activation.bias_gelu_dropout(x, vector, p, seed, seed) for p, seed in ((0.0, 1), (0.1, 1), (0.1, 1 << 62))),
        *rotary.rope(x.view(2, 8, 16, 1024)[..., :128], x.view(2, 8, 16, 1024)[:, :, :2, :128], torch.randn(8, 64), torch.randn(8, 64)),
    ]
    torch.autograd.grad(results, (x, vector), [torch.ones_like(result) for result in results])
    logits, targets = torch.randn(8, 32000), torch.randint(0, 32000, (8,))
    for scale in (None, torch.randn(8)):
        row_loss.row_loss_(logits, targets, -100, 0.0, scale, True)
    row_loss.row_loss_(logits, targets, -100, 1e-4, None, False)
    for dtype, width in ((torch.bfloat16, 64), (torch.float32, 33)):
        weights, grads = ([torch.randn(40, width, dtype=dtype) for _ in range(2)] for _ in range(2))
        first, second = ([torch.zeros(40, width) for _ in range(2)] for _ in range(2))
        rows, columns = [torch.ones(40) for _ in range(2)], [torch.ones(width) for _ in range(2)]
        for seeds, scale, moments in (([1, 2], None, []), (None, torch.ones(1), first)):
            if dtype == torch.bfloat16 or seeds is None:
                steps.adamw_step(weights, grads, first, second, 1, 0.1, 0.9, 0.95, 1e-8, 0.1, scale, seeds)
                steps.sophia_step(weights, grads, first, second, 1, 0.1, 0.965, 0.04, 1e-15, 0.1, scale, seeds)
                numbers = (1, 0.1, 1e-3, 1.0, 1e-30, 1.0, 0.9, 0.99)
                factored_steps.adafactor_step(weights, grads, rows, columns, moments, *numbers, seeds)
                means = rows, columns, rows, columns
                factored_steps.came_step(weights, grads, first, *means, 1, 0.1, 1.0, [0.9, 0.999, 0.9999], [1e-30, 1e-16], 1.0, seeds)
        steps.grad_norm(grads)
    print(" ".join(sorted(seen)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
