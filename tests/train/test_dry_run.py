"""A dry run tells what memory goes where."""

import dataclasses
import re

from schemas.settings import OptimizerSettings
from tests.train.run_tables import Alone
from tests.train.tiny_lake import TRAINING, build
from train.dry_run import dry_run


def test_gradients_of_bf16_weights_are_fp32(tmp_path):
    training = dataclasses.replace(TRAINING, precision="bf16_weights", optimizer=OptimizerSettings("lion"))
    folder = build(tmp_path, rows=4, training=training)[0]
    text = dry_run(tmp_path, folder.relative_to(tmp_path).as_posix(), Alone(), threads=1)
    sizes = {name: float(size) for name, size in re.findall(r"^(\w+) +([\d.]+) MiB", text, re.MULTILINE)}
    assert sizes.keys() == {"weights", "gradients", "optimizer", "peak"}
    count = int(re.search(r"([\d,]+) parameters", text)[1].replace(",", ""))
    assert sizes["gradients"] >= round(4 * count / 2**20, 1) - 0.05 > 0
