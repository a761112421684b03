"""What is to be caught, by which test, and how a test class is made of a plugin."""

import sys
import threading
import types

import pytest

CAUGHT = {}

# Of these, which never answer, every test is run; with pieces of the names of those that ask nothing of them.
HANGING = {}

CLASSES = {}


def given(contract, fixture, test="", **attributes):
    """Make a test class of what the decorated class makes; ``test``: a piece of the name of the one that must fail;
    empty: it is good. attributes: of the class, such as the deadlines that it has of its own."""

    def make(bad):
        def give(self):
            return bad()

        name = f"Test{bad.__name__}"
        give.__name__ = fixture
        body = {fixture: pytest.fixture(give), "deadline_s": 0.5, **attributes}
        made = CLASSES[name] = types.new_class(name, (contract,), exec_body=lambda space: space.update(body))
        setattr(sys.modules[bad.__module__], name, made)  # where pytest looks for it
        CAUGHT[name] = test
        return bad

    return make


def hanging(contract, fixture, *unasked, **attributes):
    """The same of one that never answers."""

    def make(bad):
        HANGING[f"Test{bad.__name__}"] = ("plain_", *unasked)
        return given(contract, fixture, "test", **{"deadline_s": 0.05, **attributes})(bad)

    return make


def for_ever(*args, **options):
    threading.Event().wait()
