"""Rows in, model out: data order, model, optimizers, loop, checkpoints."""
