"""Pure decisions of both ends of the wire: the worker agent's (``agent``) and whether to try again (``retry``).

No IO, no clock, no randomness: times and random numbers are parameters, so the simulator runs this same code.
Import from the modules.
"""
