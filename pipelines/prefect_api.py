"""One question to a Prefect server, as its own client asks it: with the address, key and headers of Prefect's settings."""

from __future__ import annotations

import json
import ssl
import urllib.request
from base64 import b64encode
from typing import Any

SECONDS = 5.0


def ask_server(path: str, value: Any, seconds: float = SECONDS) -> Any:
    """What the server answers to a value that is posted to a path of its API.

    Raises:
        OSError: it does not answer (``urllib.error.HTTPError``: it refuses).
        ValueError: what answers is no Prefect server.
    """
    from prefect.settings import Settings

    settings = Settings()  # read anew: profile, .env and environment
    api = settings.api
    headers = {"Content-Type": "application/json", **settings.client.custom_headers}
    if api.auth_string is not None:
        headers["Authorization"] = f"Basic {b64encode(api.auth_string.get_secret_value().encode()).decode()}"
    elif api.key is not None:
        headers["Authorization"] = f"Bearer {api.key.get_secret_value()}"
    request = urllib.request.Request(f"{(api.url or '').rstrip('/')}/{path}", json.dumps(value).encode(), headers)
    trusted = ssl.create_default_context(cafile=api.ssl_cert_file)
    if api.tls_insecure_skip_verify:
        trusted.check_hostname, trusted.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(request, timeout=seconds, context=trusted) as answer:
        return json.loads(answer.read() or b"null")
