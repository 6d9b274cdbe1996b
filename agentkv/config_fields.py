"""The kinds of values that settings take, and what all sections of the tree share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from agentkv.config_values import Auto, count_or_auto, parse_size, refuse_bool

Size = Annotated[int, BeforeValidator(parse_size)]
SizeOrAuto = Annotated[int | Auto, BeforeValidator(parse_size)]
CountOrAuto = Annotated[int | Auto, BeforeValidator(count_or_auto)]
Count = Annotated[int, BeforeValidator(refuse_bool), Field(ge=1)]
Fraction = Annotated[float, BeforeValidator(refuse_bool), Field(gt=0, le=1)]
Share = Annotated[float, BeforeValidator(refuse_bool), Field(ge=0, lt=1)]
Chance = Annotated[float, BeforeValidator(refuse_bool), Field(ge=0, le=1)]
NotNegative = Annotated[float, BeforeValidator(refuse_bool), Field(ge=0)]
Seconds = Annotated[float, BeforeValidator(refuse_bool), Field(gt=0)]


class Section(BaseModel):
    """A frozen part of the tree in which an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
