"""Wrong: it makes itself at home: variables, working directory and stdout of the process are everybody's.

Right: what a plugin needs it keeps in its own objects, and gives to the child processes that it starts.
"""

import os
import sys
import tempfile

from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"

os.environ["PATH"] = "/opt/no-such-cluster/bin"
os.environ["LANG"] = "C"
os.chdir(tempfile.gettempdir())
sys.stdout = sys.stderr


@hookimpl
def gpulayer_register_stagers(ctx):
    return []
