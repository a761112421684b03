"""One bad implementation a promise: ``caught.CAUGHT`` names the test of the contract that has to fail for it.

The good ones beside them pass everything. Run by ``test_contracts_catch.py``, in a pytest of its own.
"""
