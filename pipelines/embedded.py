"""Runs flows from the command line on Prefect's embedded server, quiet and offline, or on the server of ``PREFECT_API_URL``.

Prefect reads its settings when it is imported, so they are put into the environment first. A setting that the user made stays.
"""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from pipelines.parameters import RunParameters
from pipelines.progress import reporter
from pipelines.tables import speaker
from schemas.errors import GristmillError
from schemas.working_copy import cache_folder

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
}
"""No telemetry, and no line of Prefect's own: errors reach the terminal once, from gristmill.

Heartbeats come as often as automations.yaml expects them."""

EMBEDDED = {
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "true",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": "P1D",
}


def settle() -> None:
    """Put Prefect's settings into this process's environment."""
    values = dict(QUIET)
    if "PREFECT_API_URL" not in os.environ:
        home = Path(os.environ.get("PREFECT_HOME", cache_folder() / "prefect"))
        home.mkdir(parents=True, exist_ok=True)  # Prefect makes no parents
        values |= EMBEDDED | {"PREFECT_HOME": str(home)}
    for name, value in values.items():
        os.environ.setdefault(name, value)


def run_under_prefect(parameters: RunParameters, console: Console) -> None:
    """Run the flow ``curriculum`` in this process, with its progress on the terminal.

    Raises:
        GristmillError: as ``pipelines.run.run_curriculum``.
    """
    settle()
    from prefect import tags

    from pipelines.flows import TAG, curriculum
    from pipelines.surroundings import Surroundings, terminal

    try:
        with reporter(console) as progress, terminal(Surroundings(progress, speaker(console))), tags(TAG):
            curriculum(parameters)
    except RuntimeError as error:
        if "ephemeral" not in str(error):
            raise
        fix = "run with --no-prefect (the same, without flows), or start a server and set PREFECT_API_URL"
        raise GristmillError("Prefect's embedded server did not start in time", where="prefect", fix=fix) from error
