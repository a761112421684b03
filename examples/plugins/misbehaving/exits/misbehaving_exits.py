"""Wrong: it takes the whole process along when it does not like where it runs. os._exit can't even be caught.

Right: register nothing, or raise UsageError in a registration hook: that is shown with the plugin's name.
"""

import os

GPULAYER_API = "1.0"

if "NO_SUCH_LICENCE" not in os.environ:
    os._exit(3)
