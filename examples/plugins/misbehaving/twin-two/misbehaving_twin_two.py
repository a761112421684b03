"""Wrong: misbehaving-twin-one has a plugin of the name ``twin``, too. Which of them is meant, nobody can say.

Right: the name of a plugin is that of its distribution, which an index gives away only once.
"""

GPULAYER_API = "1.0"
