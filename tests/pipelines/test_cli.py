"""The command line as users meet it: exit codes, messages, start-up."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pipelines import cli
from pipelines.cli import run_command
from pipelines.commands import ask
from schemas.recipe_file import json_schema, load_recipe
from tests.pipelines.fixture_lake import doc

ROOT = Path(__file__).parent.parent.parent


def gristmill(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pipelines.cli", *arguments], cwd=ROOT, capture_output=True, text=True, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["wyh"], 'Did you mean "why"'),
        (["status", "--laek", "x"], "Did you mean --lake"),
        (["run", "none.yaml"], "no such recipe"),
        (["run", str(ROOT / "recipes/python.yaml"), "--workers", "-1"], "--workers"),
        (["run", str(ROOT / "recipes/python.yaml"), "--sample", "0%"], "--sample"),
        (["run", str(ROOT / "recipes/python.yaml"), "--set", "seeed=1", "--no-prefect"], "did you mean 'seed'?"),
        (["status", "--lake", "/nowhere"], "no such lake"),
        (["status", "--lake", ""], "--lake (or GRISTMILL_LAKE): it is empty"),
        (["run", str(ROOT / "recipes/python.yaml"), "--lake", ""], "--lake: "),
        (["forget", "zz", "--lake", "LAKE"], "forget: no document 'zz'"),
        (["stage", str(ROOT / "recipes/python.yaml"), "cod"], "did you mean 'code'?"),
    ],
)
def test_user_errors_are_said_without_a_traceback_and_end_with_2(
    lake: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run_command([str(lake) if each == "LAKE" else each for each in arguments]) == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said


@pytest.mark.parametrize(
    "option", [["--tokens", "-1"], ["--temperature", "-1"], ["--temperature", "nan"], ["--top-k", "-4"], ["--seed", str(1 << 64)]]
)
def test_generate_names_the_number_that_has_no_sense(lake: Path, option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["generate", "--run", "any", *option, "--lake", str(lake)]) == 2
    assert f"gristmill: {option[0]}: " in capsys.readouterr().err


def test_arguments_that_are_not_utf8_are_refused(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["sql", "SELECT '\udcff'", "--lake", str(lake)]) == 2
    assert "is not UTF-8" in capsys.readouterr().err


def test_text_of_documents_cannot_speak_to_the_terminal(lake: Path) -> None:
    query = "SELECT concat(chr(27), ']0;title', chr(7), chr(155), '31mred') AS text"
    shown = gristmill("sql", query, "--lake", str(lake)).stdout
    assert not {"\x1b", "\x07", "\x9b"} & set(shown) and "31mred" in shown
    missing = gristmill("why", "\x1b[31m", "--lake", str(lake))
    assert missing.returncode == 2 and "\x1b" not in missing.stderr


def test_reports_come_as_json(lake: Path) -> None:
    for arguments in (["status"], ["why", doc(0).hex()], ["sql", "FROM funnel()"]):
        assert json.loads(gristmill(*arguments, "--lake", str(lake), "--json").stdout)


def test_help_names_every_command_and_the_exit_codes() -> None:
    shown = gristmill("--help").stdout
    for word in ("run", "why", "sql", "export", "init", "Exit codes", "130"):
        assert word in shown


def test_help_and_questions_import_no_heavy_package(lake: Path) -> None:
    """What keeps the start under a second: none of these is imported."""
    heavy = "{'torch', 'prefect', 'numba', 'datasets', 'tokenizers'}"
    at = ["--lake", str(lake)]
    for arguments in (["--help"], ["sql", "SELECT 1", *at], ["why", "user-0", *at], ["status", *at]):
        code = f"import sys; from pipelines.cli import run_command; run_command({arguments!r}); print({heavy} & set(sys.modules))"
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout.endswith("set()\n")


def test_a_closed_pipe_is_no_error(lake: Path) -> None:
    asked = ["-m", "pipelines.cli", "sql", "SELECT * FROM range(1000000)", "--format", "csv", "--lake", str(lake)]
    command = f"{shlex.join([sys.executable, *asked])} | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("range\n", "", 0)


def test_the_published_schema_of_recipes_is_current(tmp_path: Path) -> None:
    assert run_command(["schema", str(tmp_path / "schema.json")]) == 0
    assert json.loads((tmp_path / "schema.json").read_text()) == json_schema()
    assert (ROOT / "schemas/recipe.schema.json").read_text() == (tmp_path / "schema.json").read_text(), "run: gristmill schema"


def test_init_writes_a_project_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["init", str(tmp_path / "p")]) == 0
    assert load_recipe(tmp_path / "p/recipe.yaml").stages[0].name == "code"
    ours = (ROOT / "prefect.yaml").read_text().replace("recipes/python.yaml", "recipe.yaml").replace("recipes/", "")
    assert (tmp_path / "p/prefect.yaml").read_text() == ours
    assert run_command(["init", str(tmp_path / "p")]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_written_for_each_shell(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    script = tmp_path / "completion"
    assert run_command(["--install-completion", "--shell", shell, "--output", str(script)]) == 0
    assert "what-if" in script.read_text()


@pytest.mark.parametrize("address", ["gs://bucket/lake", "file:///lake", "s3://", "s3:", "s3://bucket"])
def test_what_is_no_lakes_address_makes_no_folder(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["curate", str(ROOT / "recipes/python.yaml"), "--lake", address]) == 2
    assert not list(tmp_path.iterdir())


def test_a_stop_that_a_library_swallows_is_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    def app(*_: object, **__: object) -> None:
        with suppress(BaseException):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        raise ImportError("half a module")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(cli, "build_app", lambda: app)
    try:
        assert run_command([]) == 75
    finally:
        signal.signal(signal.SIGTERM, before)


def test_curating_needs_no_torch() -> None:
    code = "import sys, pipelines.run, pipelines.dedup_report, pipelines.state; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_terminal_of_another_encoding_gets_escapes(lake: Path) -> None:
    command = [sys.executable, "-m", "pipelines.cli", "sql", "SELECT 'é日本' AS text", "--lake", str(lake)]
    for form, wanted in (("table", "é\\u65e5\\u672c"), ("json", '"é\\u65e5\\u672c"')):
        environment = os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([*command, "--format", form], env=environment, capture_output=True, check=False)
        assert done.returncode == 0 and wanted in done.stdout.decode("latin-1")


def test_a_full_disk_is_the_users_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/scratch/band-000")

    monkeypatch.setattr(ask, "open_lake", full)
    assert run_command(["status"]) == 2
    told = capsys.readouterr().err
    assert "the disk is full" in told and "/scratch/band-000" in told and "TMPDIR" in told
