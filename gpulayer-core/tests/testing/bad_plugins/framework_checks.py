"""Framework checks."""

import itertools

from bad_plugins.caught import for_ever, given, hanging
from gpulayer.plugins import CheckScript
from gpulayer.spec.request import Accelerator
from gpulayer.testing import FrameworkCheckContract


def check(test):
    return given(FrameworkCheckContract, "check", test)


@given(FrameworkCheckContract, "check")
class GoodCheck:
    name = "nothing"
    accelerators = (Accelerator.CPU,)
    source = "print('{\"version\": null}')"

    def script(self):
        return CheckScript(self.source)


@check("plain_name")
class CheckOfNoName(GoodCheck):
    name = "Nothing 2"


@check("which_accelerators")
class CheckOfAny(GoodCheck):
    accelerators = (Accelerator.ANY,)


@check("same_script")
class CheckOfMany(GoodCheck):
    count = itertools.count()

    def script(self):
        return CheckScript(f"{self.source} # {next(self.count)}")


@check("whole_modules")
class CheckOfPieces(GoodCheck):
    def script(self):
        return CheckScript(self.source, modules=("nothing.core",))


@check("python_3_9")
class CheckOfToday(GoodCheck):
    source = "match 1:\n    case _: print('{\"version\": null}')"


@check("says_so")
class CheckOfWhatIsNotThere(GoodCheck):
    source = 'import torch\nprint(\'{"version": "1"}\')'


@check("says_what_there_is")
class CheckOfOthers(GoodCheck):
    source = 'print(\'{"version": "1", "devices": {"cuda": ""}}\')'


@hanging(FrameworkCheckContract, "check", "which_accelerators")
class CheckForEver(GoodCheck):
    script = for_ever
