"""What extends the worker: contracts (``contracts``), what is registered (``registry``), and core's own (``builtin``).

Import from the modules. The registry is static until third parties may add to it; the contracts are meant to stay.
"""
