"""What every section of a recipe is made of: its base class and the names it may use."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

NAME = r"^[a-z][a-z0-9_-]{0,40}$"
REASON = r"^[A-Za-z][A-Za-z0-9_]*$"
SQL_NAME = r"^[a-z][a-z0-9_]{0,40}$"


class Strict(BaseModel):
    """Base of all recipe sections: unknown keys are refused, and so are NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
