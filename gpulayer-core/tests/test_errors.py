"""The error tree: every error tells its code, blame and next step, and survives the wire and pickling."""

import pickle

import pytest

from gpulayer import errors
from gpulayer.errors import GpulayerError, ProtocolError, error_from_code
from gpulayer.wire.errors import envelope, error_from_envelope

KINDS = GpulayerError.__subclasses__()


def test_codes_are_unique_and_every_error_is_exported():
    assert len({kind.code for kind in KINDS}) == len(KINDS)
    assert {kind.__name__ for kind in KINDS} <= set(errors.__all__)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_envelope_and_a_pickle(kind):
    error = kind("what happened", hint="what to do", details={"n": 1})
    for copy in (error_from_envelope(envelope(error)), pickle.loads(pickle.dumps(error))):
        assert type(copy) is kind
        assert (copy.message, copy.hint, copy.details) == ("what happened", "what to do", {"n": 1})
    assert str(error) == "what happened (what to do)"


def test_an_unknown_code_is_named():
    error = error_from_code("teapot", "short and stout")
    assert isinstance(error, ProtocolError)
    assert error.message == "teapot: short and stout"


@pytest.mark.parametrize("document", [None, [], {}, {"error": "x"}, {"error": {"code": 1, "message": "x"}}])
def test_what_is_no_envelope_is_no_error(document):
    assert error_from_envelope(document) is None
