"""``python -m train LAKE STAGE_FOLDER``: train one stage, alone or under torchrun; the same command again goes on where it was."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from schemas.errors import DONE, SAVED, GristmillError
from schemas.store import lock, open_lake, remove, remove_temporary
from train.interrupt import Interrupt, Interrupted

if TYPE_CHECKING:
    from train.parallel import Ranks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 ended, 2 an error to act on, 75 interrupted and saved, 76 to be rewound after a spike."""
    parser = argparse.ArgumentParser(prog="python -m train", description="Train one stage of a lake; resumes by itself.")
    parser.add_argument("lake", help="the lake: a folder, or s3://BUCKET/PREFIX")
    parser.add_argument("stage", help="the stage's folder, which holds stage.json; relative to the lake, or a path inside it")
    parser.add_argument("--threads", type=int, default=0, help="torch threads (default: the stage's setting)")
    parser.add_argument("--allow-mismatch", action="store_true", help="resume although the loss sequence will not be the same")
    parser.add_argument("--dry-run", action="store_true", help="build everything, do one step, report memory and time, write nothing")
    options = parser.parse_args(arguments)
    interrupt = Interrupt()
    interrupt.install()
    try:
        return _run(options, interrupt)
    except GristmillError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except Interrupted:
        return SAVED
    except RuntimeError as error:
        import torch

        if not isinstance(error, torch.OutOfMemoryError):
            raise
        fix = "lower training.micro_batch_rows, or set training.recompute; --dry-run tells what takes how much"
        print(f"error: {GristmillError(f'the device has no memory left: {error}', where=options.stage, fix=fix)}", file=sys.stderr)
        return GristmillError.exit_code


def _run(options: argparse.Namespace, interrupt: Interrupt) -> int:
    from train.device_lock import device_lock
    from train.dry_run import dry_run
    from train.parallel import ranks

    lake = open_lake(options.lake).resolve()
    folder = _inside(lake, options.stage)
    with ranks() as group, device_lock(group.device):
        if options.dry_run:
            print(dry_run(lake, folder, group, threads=options.threads))
            return DONE
        if not (lake / folder / "outcome.json").is_file():
            _train(lake, folder, group, interrupt, options)
        elif group.first:
            print(f"{folder} has ended already: see {lake / folder / 'outcome.json'}", file=sys.stderr)
    return DONE


def _train(lake: Path, folder: str, group: Ranks, interrupt: Interrupt, options: argparse.Namespace) -> None:
    """Train a stage; rank 0 keeps every other trainer of the run out meanwhile."""
    from train.loop import Trainer
    from train.skips import ASKED
    from train.stage import Stage

    with lock((lake / folder).parent / "train.lock", f"training {folder}") if group.first else nullcontext():
        if group.first:
            remove_temporary(lake / folder)
            remove(lake / folder / ASKED)
        stage = Stage.open(lake, folder)
        Trainer(stage, group, interrupt, threads=options.threads, allow_mismatch=options.allow_mismatch).run()


def _inside(lake: Path, stage: str) -> str:
    if (lake / stage).is_dir():
        return (lake / stage).resolve().relative_to(lake).as_posix()
    path = Path(stage).resolve()
    if not path.is_dir() or not path.is_relative_to(lake):
        raise GristmillError(f"no stage folder {stage!r} in this lake", where=str(lake), fix="name one of runs/<run>/<position>-<stage>")
    return path.relative_to(lake).as_posix()


def _end() -> NoReturn:
    """Run the command and end the process; at once where an error left the ranks' group open, whose end would wait for the others."""
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _end()
