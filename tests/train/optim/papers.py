"""The papers' update rules written out in float64, one parameter and one gradient at a time: the oracles of the own optimizers."""

import torch

Tensor = torch.Tensor


def rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def factored_root(rows: Tensor, columns: Tensor) -> Tensor:
    """sqrt(R C / mean R), the rank-1 second moment's root."""
    return (rows[..., :, None] * columns[..., None, :] / rows.mean(-1)[..., None, None]).sqrt()


class SecondMoment:
    """EMA of squares: whole for vectors, row and column means over the last two dimensions otherwise."""

    def __init__(self) -> None:
        self.rows = self.columns = self.whole = torch.zeros((), dtype=torch.float64)

    def root(self, squares: Tensor, beta: float) -> Tensor:
        if squares.ndim < 2:
            self.whole = beta * self.whole + (1 - beta) * squares
            return self.whole.sqrt()
        self.rows = beta * self.rows + (1 - beta) * squares.mean(-1)
        self.columns = beta * self.columns + (1 - beta) * squares.mean(-2)
        return factored_root(self.rows, self.columns)


class PaperAdafactor:
    """Shazeer & Stern 2018, algorithms 4 and 5, with rho_t = min(lr, 1/sqrt t)."""

    def __init__(self, lr: float = 1e-2, weight_decay: float = 0.0, beta1: float = 0.0) -> None:
        self.lr, self.weight_decay, self.beta1, self.step, self.second, self.moment = lr, weight_decay, beta1, 0, SecondMoment(), 0.0

    def __call__(self, p: Tensor, g: Tensor) -> Tensor:
        self.step += 1
        rho = min(self.lr, self.step**-0.5)
        alpha = max(1e-3, rms(p)) * rho
        u = g / self.second.root(g**2 + 1e-30, 1 - self.step**-0.8)
        u = u / max(1.0, rms(u) / 1.0)
        self.moment = self.beta1 * self.moment + (1 - self.beta1) * u
        return p * (1 - self.lr * self.weight_decay) - alpha * self.moment


class PaperCAME:
    """Luo et al. 2023, algorithm 2, with the authors' decoupled decay."""

    def __init__(self, lr: float = 1e-3, weight_decay: float = 0.0) -> None:
        self.lr, self.weight_decay, self.second, self.residual, self.moment = lr, weight_decay, SecondMoment(), SecondMoment(), 0.0

    def __call__(self, p: Tensor, g: Tensor) -> Tensor:
        u = g / self.second.root(g**2 + 1e-30, 0.999)
        u = u / max(1.0, rms(u))
        self.moment = 0.9 * self.moment + 0.1 * u
        update = self.moment
        if g.ndim >= 2:
            update = self.moment / self.residual.root((u - self.moment) ** 2 + 1e-16, 0.9999)
        return p * (1 - self.lr * self.weight_decay) - self.lr * update


class PaperSophia:
    """Liu et al. 2023, algorithm 3 with the Gauss-Newton-Bartlett estimator every 10 steps, as the authors' code has it."""

    def __init__(self, lr: float = 1e-3, weight_decay: float = 0.1, tokens: int = 4096) -> None:
        self.lr, self.weight_decay, self.tokens, self.moment, self.h = lr, weight_decay, tokens, 0.0, 0.0

    def estimate(self, g: Tensor) -> None:
        self.h = 0.99 * self.h + 0.01 * g**2

    def __call__(self, p: Tensor, g: Tensor) -> Tensor:
        self.moment = 0.965 * self.moment + 0.035 * g
        ratio = (self.moment.abs() / (0.04 * self.tokens * self.h + 1e-15)).clamp(max=1.0)
        return p * (1 - self.lr * self.weight_decay) - self.lr * self.moment.sign() * ratio
