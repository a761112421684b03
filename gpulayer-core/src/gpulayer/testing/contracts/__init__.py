"""The contracts of plugins, as classes of tests for a stranger to subclass.

``class TestMine(ProbeContract)`` with a fixture that gives what is to be tested; everything else is inherited, and may
be overridden. Their names are the sentences that hold for everything of that kind.
"""

import pytest

# Else their failures would say ``AssertionError`` and no more.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "contract",
            "environment",
            "event_sink",
            "framework",
            "job_check",
            "launcher",
            "plugin",
            "probe",
            "provider",
            "scorer",
            "stager",
        )
    )
)

from gpulayer.testing.contracts.contract import Contract  # noqa: E402 - after the line above
from gpulayer.testing.contracts.environment import EnvironmentBuilderContract  # noqa: E402
from gpulayer.testing.contracts.event_sink import EventSinkContract  # noqa: E402
from gpulayer.testing.contracts.framework import FrameworkCheckContract  # noqa: E402
from gpulayer.testing.contracts.job_check import JobCheckContract  # noqa: E402
from gpulayer.testing.contracts.launcher import LauncherContract  # noqa: E402
from gpulayer.testing.contracts.plugin import PluginContract  # noqa: E402
from gpulayer.testing.contracts.probe import ProbeContract  # noqa: E402
from gpulayer.testing.contracts.provider import ProviderContract  # noqa: E402
from gpulayer.testing.contracts.scorer import ScorerContract  # noqa: E402
from gpulayer.testing.contracts.stager import StagerContract  # noqa: E402

__all__ = [
    "Contract",
    "EnvironmentBuilderContract",
    "EventSinkContract",
    "FrameworkCheckContract",
    "JobCheckContract",
    "LauncherContract",
    "PluginContract",
    "ProbeContract",
    "ProviderContract",
    "ScorerContract",
    "StagerContract",
]
