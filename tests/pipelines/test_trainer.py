"""The process around the trainer, with scripts in the trainer's place: what it does with exits, signals and a live predecessor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines import trainer
from schemas.errors import GristmillError
from schemas.settings import ModelSettings, StageSettings, TrainSettings

OUTCOME = (
    '{"reason": "finished", "detail": "all rows", "next_row": 1, "next_step": 1, "checkpoint": "c", "first_loss": 2.0,'
    ' "last_loss": 1.0, "heldout": {"all": 1.5}, "returned": [["lot", 3, 5]]}'
)
FINISH = f"import pathlib, sys; print('step 0'); pathlib.Path(sys.argv[2], 'outcome.json').write_text('''{OUTCOME}''')"
SAVE_ON_TERM = """
import signal, sys, time
def save(*_):
    print('saved', flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
time.sleep(3600)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(3600)"

Script = Callable[[str], None]


@pytest.fixture
def stage(tmp_path: Path) -> StageSettings:
    folder = "runs/demo/0-first"
    (tmp_path / folder).mkdir(parents=True)
    return StageSettings(
        "demo", "first", 0, folder, "runs/demo/segments.json", "", 0, 0, None, 0, 300, 8, ModelSettings(), TrainSettings(), (), ()
    )


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Put a Python program in the trainer's place."""

    def put(code: str) -> None:
        monkeypatch.setattr(trainer, "command", lambda root, folder, ranks: [sys.executable, "-c", code, str(root), str(folder)])

    return put


def test_an_ended_stage_gives_its_outcome_and_is_not_trained_again(tmp_path: Path, stage: StageSettings, script: Script) -> None:
    lines: list[str] = []
    script(FINISH)
    outcome = trainer.run_trainer(tmp_path, stage, lines.append)
    assert (outcome.last_loss, outcome.returned, lines) == (1.0, (("lot", 3, 5),), ["step 0"])
    script("raise SystemExit(1)")
    assert trainer.run_trainer(tmp_path, stage, lines.append) == outcome


@pytest.mark.parametrize(
    ("code", "words", "exit_code"),
    [
        ("print('no such lot'); raise SystemExit(2)", "no such lot", 2),
        ("raise SystemExit(75)", "run the same command again", 75),
        ("1 / 0", "ZeroDivisionError", 2),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL", 2),
        ("pass", "without an outcome", 2),
    ],
)
def test_a_failed_trainer_is_an_error_with_its_last_words(
    tmp_path: Path, stage: StageSettings, script: Script, code: str, words: str, exit_code: int
) -> None:
    script(code)
    with pytest.raises(GristmillError, match=words) as caught:
        trainer.run_trainer(tmp_path, stage, lambda line: None)
    assert caught.value.exit_code == exit_code


def when(line: str, act: Callable[[], None]) -> Callable[[str], None]:
    return lambda said: act() if said == line else None


def interrupt() -> None:
    raise KeyboardInterrupt


def test_cancelling_lets_the_trainer_save(tmp_path: Path, stage: StageSettings, script: Script) -> None:
    script(SAVE_ON_TERM)
    with pytest.raises(KeyboardInterrupt):
        trainer.run_trainer(tmp_path, stage, when("ready", interrupt))
    assert (tmp_path / stage.folder / trainer.LOG).read_text().endswith("saved\n")
    assert trainer.live_trainer(tmp_path / stage.folder) is None


def test_a_trainer_that_does_not_listen_is_killed_after_the_grace(tmp_path: Path, stage: StageSettings, script: Script) -> None:
    script(DEAF)
    with pytest.raises(KeyboardInterrupt):
        trainer.run_trainer(tmp_path, stage, when("ready", interrupt), grace=0.3)
    assert trainer.live_trainer(tmp_path / stage.folder) is None


def test_a_trainer_outlives_a_killed_parent_and_the_next_one_follows_it(tmp_path: Path, stage: StageSettings, script: Script) -> None:
    wait = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)\n"
    code = wait + FINISH
    parent = (
        f"from pipelines import trainer; from schemas.settings import *; from pathlib import Path; import sys\n"
        f"trainer.command = lambda *_: [sys.executable, '-c', {code!r}, {str(tmp_path)!r}, {str(tmp_path / stage.folder)!r}]\n"
        f"trainer.run_trainer(Path({str(tmp_path)!r}), {stage!r}, print)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=Path(trainer.__file__).parent.parent)
    wait_until(lambda: bool(trainer.live_trainer(tmp_path / stage.folder)))
    process.send_signal(signal.SIGKILL)
    process.wait()
    alive = trainer.live_trainer(tmp_path / stage.folder)
    assert alive
    os.kill(alive, 0)
    script("raise SystemExit(1)")
    lines: list[str] = []

    def heard(line: str) -> None:
        lines.append(line)
        (tmp_path / "go").touch()

    assert trainer.run_trainer(tmp_path, stage, heard).reason == "finished"
    assert "following it" in lines[0]
    assert lines[1:] == ["step 0"]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_several_ranks_run_under_torchrun(tmp_path: Path) -> None:
    assert trainer.command(tmp_path, tmp_path / "s", 2)[1:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


TORCHRUN = """
import sys
for line in ("step 0", "error: lr: too large", "error: lr: too large", "  -> lower it", "  -> lower it"):
    print(line)
print("E1130 09:16:02 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 2)")
print("Traceback (most recent call last):\\n" * 40)
sys.exit(1)
"""


def test_what_ranks_refuse_is_told_once_without_the_launchers_traceback(tmp_path: Path, stage: StageSettings, script: Script) -> None:
    script(TORCHRUN)
    lines: list[str] = []
    with pytest.raises(trainer.TrainerError) as refused:
        trainer.run_trainer(tmp_path, stage, lines.append, ranks=2)
    assert refused.value.what.splitlines() == ["error: lr: too large", "    -> lower it"]
    assert lines[-1] == "  -> lower it" and refused.value.exit_code == 2
    with pytest.raises(trainer.TrainerError, match="failed with exit code 1"):
        trainer.run_trainer(tmp_path, stage, lines.append)


def test_a_dry_run_gives_the_trainers_report_or_its_last_words(tmp_path: Path, stage: StageSettings, script: Script) -> None:
    script("import sys; print(sys.argv[3], 'weights 1 MiB')")
    assert trainer.dry_run(tmp_path, stage) == "--dry-run weights 1 MiB"
    script("import sys; sys.exit('error: too large')")
    with pytest.raises(trainer.TrainerError, match="too large"):
        trainer.dry_run(tmp_path, stage)
    assert not list((tmp_path / stage.folder).iterdir())
