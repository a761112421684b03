"""Runnable comparisons with peers. Speed lives here, never in the tests."""
