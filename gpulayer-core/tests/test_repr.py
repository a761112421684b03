"""What opens a door stands in no ``repr``: values end up in logs, tracebacks and failed assertions."""

import dataclasses
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import gpulayer
from gpulayer.client.connect import Settings
from gpulayer.client.contexts import Context
from gpulayer.client.embedded import EmbeddedPlane
from gpulayer.client.location import Configured, EndpointFound, Location
from gpulayer.client.reach import Reach
from gpulayer.plugins.settings import PluginSettings
from gpulayer.server import PlaneSettings, ServeSettings
from gpulayer.worker import WorkerSettings

SECRET = "glc_" + "a" * 12 + "_secret"
OPENS = re.compile(r"(.*_)?(token|private_key|secret|password|pepper)")


def dataclasses_of_the_package():
    for module in pkgutil.walk_packages(gpulayer.__path__, "gpulayer."):
        if ".migrations." in module.name:  # runs within alembic alone
            continue
        for kind in vars(importlib.import_module(module.name)).values():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.name:
                yield kind


def test_no_dataclass_shows_a_field_that_opens_a_door():
    found = [
        f"{kind.__module__}.{kind.__name__}.{field.name}"
        for kind in dataclasses_of_the_package()
        for field in dataclasses.fields(kind)
        if OPENS.fullmatch(field.name) and "str" in str(field.type) and field.repr
    ]
    assert found == []


@pytest.mark.parametrize(
    "value",
    [
        Location.of("https://box.example", SECRET),
        Configured(Location.of("https://box.example", SECRET), "lab"),
        Reach(Location.of("https://box.example", SECRET)).way,
        EndpointFound("http://127.0.0.1:1", "127.0.0.1", 1, SECRET, 1, "0.1.0", embedded=False),
        Context(("https://box.example",), SECRET),
        Settings(Configured(Location.of("https://box.example", SECRET)), {"GPULAYER_TOKEN": SECRET}, "0.1.0", "x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_who_looks_at_a_value_sees_where_it_leads_but_no_token(value):
    assert "secret" not in repr(value)
    assert "box.example" in repr(value) or "127.0.0.1" in repr(value)


VARIABLES = {"GPULAYER_PLUGIN_WEBHOOK_KEY": SECRET}
TOLD = PluginSettings.of(VARIABLES)


@pytest.mark.parametrize(
    "value",
    [
        EmbeddedPlane(Path("/s"), "0.1.0", VARIABLES),
        ServeSettings(Path("/s"), worker_environment=VARIABLES, plugins=TOLD),
        PlaneSettings(Path("/s"), plugins=TOLD),
        WorkerSettings(Path("/w"), urls=("https://box.example",), environment=VARIABLES, plugins=TOLD),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_plugins_are_told_is_not_shown_with_what_is_started(value):
    assert "secret" not in repr(value)
