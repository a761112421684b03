"""How this program talks to a control plane: one table of endpoints, two thin shells, and where to find one.

``endpoints`` and ``calls`` are data and plans; ``answers`` and ``retrying`` are pure decisions; ``transport`` and
``async_transport`` do the IO. ``location`` and ``embedded`` find or start a control plane; ``upload`` and
``download`` move folders. Import from the modules: this face imports nothing, so that a command pays only for what
it uses.
"""
