"""How this program talks to a control plane: one table of endpoints, two thin shells, and where to find one.

``endpoints`` and ``calls`` are data and plans; ``answers`` and ``reach`` are decisions; ``transport`` over
``connection``, and ``async_transport`` over ``async_tunnel``, do the IO. ``location``, ``contexts`` and ``embedded``
find or start a control plane; ``upload`` and ``download`` move folders. Import from the modules: this face imports
nothing, so that a command pays only for what it uses.
"""
