"""Which worker may run a request, which does, and why: pure functions of requests, facts and free capacity.

One set of functions answers the queue, ``explain``, a rejection and what a provider should make.
"""
