"""Plugins as a whole: how they come in, and what they register."""

import itertools
import os

import pytest

from bad_plugins.caught import given
from bad_plugins.modules import module
from bad_plugins.probes import GoodProbe
from gpulayer.plugins import hookimpl
from gpulayer.testing import PluginContract


def plugin(test):
    return given(PluginContract, "plugin", test)


def registering(things):
    @hookimpl
    def gpulayer_register_probes(ctx):
        return things()

    return {"gpulayer_register_probes": gpulayer_register_probes}


class PluginContractHere(PluginContract):
    @pytest.fixture
    def name(self, plugin):
        return getattr(plugin, "NAME", "mine")


def named_plugin(test):
    return given(PluginContractHere, "plugin", test)


@named_plugin("its_name_is_plain")
def PluginOfNoName():  # noqa: N802
    return module(NAME="My Plugin", **registering(list))


@plugin("can_be_a_plugin")
def PluginOfNoVersion():  # noqa: N802
    return module(GPULAYER_API=1.0, **registering(list))


@plugin("can_be_a_plugin")
def PluginOfLater():  # noqa: N802
    return module(GPULAYER_API="1.99", **registering(list))


@plugin("can_be_a_plugin")
def PluginOfFirstPlace():  # noqa: N802
    return module(GPULAYER_PRIORITY="first", **registering(list))


@plugin("can_be_a_plugin")
def PluginOfNothing():  # noqa: N802
    return module()


@plugin("can_be_a_plugin")
def PluginThatForgets():  # noqa: N802
    return module(gpulayer_register_probes=lambda ctx: [])


@plugin("can_be_a_plugin")
def PluginOfTomorrow():  # noqa: N802
    @hookimpl
    async def gpulayer_register_probes(ctx):
        return []

    return module(gpulayer_register_probes=gpulayer_register_probes)


@plugin("can_be_a_plugin")
def PluginOfDefaults():  # noqa: N802
    @hookimpl
    def gpulayer_register_probes(ctx=None):
        return []

    return module(gpulayer_register_probes=gpulayer_register_probes)


@plugin("hooks_promise")
def PluginOfWords():  # noqa: N802
    return module(**registering(lambda: ["a probe"]))


@plugin("hooks_promise")
def PluginOfTwins():  # noqa: N802
    return module(**registering(lambda: [GoodProbe(), GoodProbe()]))


@plugin("find_the_same")
def PluginOfWhims():  # noqa: N802
    count = itertools.count()

    def things():
        made = GoodProbe()
        made.name = f"good-{next(count)}"
        return [made]

    return module(**registering(things))


@plugin("prints_and_changes_nothing")
def PluginThatMovesIn():  # noqa: N802
    def things():
        os.environ["MINE"] = str(len(os.environ))
        return []

    return module(**registering(things))


@plugin("importing_it")
def PluginThatNobodyCanImport():  # noqa: N802
    return module(**registering(list))
