"""Wrong: the import needs something that only some machines have, and raises where it is not there.

Right: a module only defines things; what may fail belongs into the methods of what it registers.
"""

from pathlib import Path

GPULAYER_API = "1.0"

CREDENTIALS = Path("/etc/no-such-cluster/credentials").read_text(encoding="utf-8")
