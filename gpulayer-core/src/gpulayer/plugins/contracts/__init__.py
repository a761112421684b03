"""What a plugin's objects are held to, a module a kind. Typed objects act; hooks (``plugins.hooks``) register them.

Every contract says what may block and for how long, how often it is asked, and what becomes of a failure. Whatever a
plugin does, it is called in a thread of its own behind a guard: a deadline, any exception, an exit and a result of the
wrong type are faults of that plugin, and everything else works on. Objects are shared by all calls and may be asked
from several threads. What they are given is immutable, and theirs to read alone.
"""
