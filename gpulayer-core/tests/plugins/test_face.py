"""``gpulayer.plugins``: what it shows, and what reading the settings alone does not load."""

import subprocess
import sys

import pytest

import gpulayer.plugins


def test_the_face_shows_what_it_lists():
    for name in gpulayer.plugins.__all__:
        assert getattr(gpulayer.plugins, name) is not None
    assert set(gpulayer.plugins.__all__) <= set(dir(gpulayer.plugins))
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        gpulayer.plugins.nothing_of_the_kind  # noqa: B018


def test_settings_are_read_before_anything_heavy_is_loaded():
    look = (
        "import sys, gpulayer.plugins.settings, gpulayer.server.settings\n"
        "print([name for name in sys.modules if name == 'pluggy' or name.startswith('gpulayer.plugins.contracts')])"
    )
    found = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == "[]"
