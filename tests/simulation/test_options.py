"""The keywords that editors and notebooks see are the settings: none missing, none too many, no other default."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

import fedstale as fs
from fedstale.beta import Beta
from fedstale.clock import Devices, Server
from fedstale.participation import Estimator, Selection
from fedstale.simulation import Settings
from fedstale.simulation.options import RunOptions

OBJECTS = {"Beta": Beta, "Selection": Selection, "Estimator": Estimator, "Server": Server, "Devices": Devices}
ARGUMENTS = {"task", "rule", "participation"}


def parts(annotation: Any) -> set[Any]:
    """The members of a union; a table of any kind is a Mapping."""
    if get_origin(annotation) in (Union, types.UnionType):
        return set().union(*(parts(one) for one in get_args(annotation)))
    return {Mapping} if get_origin(annotation) in (dict, Mapping) else {annotation}


def test_every_setting_is_there_with_its_type() -> None:
    hints = get_type_hints(RunOptions, localns=OBJECTS)
    assert set(hints) == set(Settings.model_fields) - ARGUMENTS
    for name, annotation in hints.items():
        allowed, found = parts(Settings.model_fields[name].annotation), parts(annotation)
        assert allowed <= found, name
        assert found - allowed <= {*OBJECTS.values(), Mapping}, name


@pytest.mark.parametrize("function", [fs.simulate, fs.compare])
def test_the_signature_shows_every_setting_and_its_default(function: Any) -> None:
    shown = inspect.signature(function).parameters
    assert set(Settings.model_fields) - {"rule"} <= set(shown)
    for name in RunOptions.__annotations__:
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert shown[name].default == Settings.model_fields[name].get_default(call_default_factory=True), name
    assert shown["task"].default == Settings.model_fields["task"].default


def test_a_misspelt_keyword_names_the_right_one() -> None:
    options: dict[str, Any] = {"round": 3}
    with pytest.raises(fs.InvalidInput, match="unknown setting 'round': did you mean rounds"):
        fs.simulate("quadratic", **options)
