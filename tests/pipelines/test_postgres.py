"""The same deployments on a Prefect server whose database is PostgreSQL (Debian's package), on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.pipelines.prefect_site import Site, cancel_and_resume, running_site, wait_for

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not PROGRAMS, reason="no PostgreSQL: apt-get install postgresql"),
]
USER = "postgres"
"""PostgreSQL refuses to run as root; Debian's package makes this user."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty database."""
    folder = tmp_path_factory.mktemp("postgres")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    drop: list[str] = []
    place = folder / "data"
    if os.geteuid() == 0:
        drop = ["runuser", "-u", USER, "--"]
        place = Path(tempfile.mkdtemp(prefix="gristmill-postgres-"))  # pytest's folders are root's alone
        shutil.chown(place, USER)
    programs = PROGRAMS[-1].parent
    made = [*drop, programs / "initdb", "-D", place, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run(made, check=True, capture_output=True, cwd="/")
    options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    log = (folder / "log").open("wb")
    server = subprocess.Popen([*drop, programs / "postgres", "-D", place, "-p", str(port), *options], stdout=log, stderr=log, cwd="/")
    try:
        wait_for("PostgreSQL is up", lambda: _answers(programs, port))
        subprocess.run([programs / "createdb", "-h", "127.0.0.1", "-p", str(port), "-U", USER, "prefect"], check=True)
        yield f"postgresql+asyncpg://{USER}@127.0.0.1:{port}/prefect"
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(120)
        server.kill()
        server.wait()
        shutil.rmtree(place, ignore_errors=True)


def _answers(programs: Path, port: int) -> bool:
    return subprocess.run([programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]).returncode == 0


@pytest.fixture(scope="module")
def site(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site") / "clone", {"PREFECT_SERVER_DATABASE_CONNECTION_URL": database}) as site:
        yield site


def test_a_run_is_deployed_cancelled_and_resumed_on_postgresql(site: Site) -> None:
    cancel_and_resume(site)
    assert not (site.folder.parent / "prefect/prefect.db").exists(), "nothing lies in SQLite"
