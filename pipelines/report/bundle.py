"""Vega, Vega-Lite and vega-embed as one script, taken out of vl-convert, which carries them; no network.

Taking it out costs seconds, so it is kept in the user's cache folder under its version.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import version

from schemas.errors import GristmillError
from schemas.working_copy import cache_folder

VEGA_LITE = "6.4"
"""What Altair 6.3 writes."""


@cache
def vega_bundle() -> str:
    """The script; sets ``vegaEmbed``.

    Raises:
        GristmillError: the extra ``report`` is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise GristmillError("the report needs a package", where="vl-convert-python", fix="pip install 'gristmill[report]'") from error
    kept = cache_folder() / f"vega-lite-{VEGA_LITE}-vl-convert-{version('vl-convert-python')}.js"
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    text: str = vl_convert.javascript_bundle(None, vl_version=VEGA_LITE)  # type: ignore[arg-type]  # None is its own default
    if "</script" in text.lower() or "<!--" in text:
        raise RuntimeError("the charting script would end its own element")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_name(f"{kept.name}.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        partial.replace(kept)
    except OSError:  # a home that cannot be written: the next report takes the seconds again
        return text
    return text
