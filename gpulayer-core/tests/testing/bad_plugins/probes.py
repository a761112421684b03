"""Probes."""

import itertools
import os
import sys
import threading
import time

from bad_plugins.caught import for_ever, given, hanging
from gpulayer.plugins import Findings, ProcessOnDevice
from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator
from gpulayer.testing import ProbeContract


def probe(test):
    return given(ProbeContract, "probe", test)


@given(ProbeContract, "probe")
class GoodProbe:
    name = "good"

    def look(self, site):
        return Findings(resources=(("licence", 1),))


@probe("plain_name")
class ProbeOfNoName(GoodProbe):
    name = "My Probe"


@probe("gives_findings")
class ProbeOfADictionary(GoodProbe):
    def look(self, site):
        return {"cpus": 4}


@probe("within_its_deadline")
class ProbeThatHangs(GoodProbe):
    def look(self, site):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(2)
        return Findings()


@probe("can_be_reported")
class ProbeOfNames(GoodProbe):
    def look(self, site):
        return Findings(addresses=("box.local",))


@probe("can_be_reported")
class ProbeOfNumbers(GoodProbe):
    def look(self, site):
        return Findings(labels=(("rack", 7),))


@probe("can_be_reported")
class ProbeOfTwoRacks(GoodProbe):
    def look(self, site):
        return Findings(labels=(("rack", "7"), ("rack", "8")))


@probe("told_apart")
class ProbeOfTwins(GoodProbe):
    def look(self, site):
        return Findings(devices=(Device("GPU-1", 0, Accelerator.CUDA, "x"), Device("GPU-1", 1, Accelerator.CUDA, "x")))


@probe("counted_by_plain_names")
class ProbeOfNone(GoodProbe):
    def look(self, site):
        return Findings(resources=(("licence", 0),))


@probe("finds_the_same")
class ProbeThatCounts(GoodProbe):
    count = itertools.count(1)

    def look(self, site):
        return Findings(resources=(("licence", next(self.count)),))


@probe("finds_the_same")
class ProbeOfTheHour(GoodProbe):
    count = itertools.count(1)

    def look(self, site):
        return Findings(labels=(("looked", str(next(self.count))),))


@given(ProbeContract, "probe")
class ProbeOfWhatFlows(GoodProbe):
    """Others use the machine, too: that what is free differs is no fault."""

    count = itertools.count(1)

    def look(self, site):
        free = next(self.count)
        device = Device("GPU-1", 0, Accelerator.CUDA, "x", memory_free_bytes=free)
        return Findings(disk_bytes=free, devices=(device,), processes=(ProcessOnDevice("GPU-1", free),))


@probe("processes_are_on_devices_that_it_finds")
class ProbeOfProcessesElsewhere(GoodProbe):
    def look(self, site):
        return Findings(processes=(ProcessOnDevice("GPU-9", 7),))


@hanging(ProbeContract, "probe")
class ProbeForEver(GoodProbe):
    look = for_ever


@probe("empty_environment")
class ProbeThatNeedsAPath(GoodProbe):
    def look(self, site):
        return Findings(labels=(("path", site.environment["PATH"]),))


@probe("changes_nothing_where_it_looks")
class ProbeThatLeavesFiles(GoodProbe):
    def look(self, site):
        (site.work_dir / "cache").write_text("x")
        return Findings()


@probe("prints_nothing")
class ProbeThatTalks(GoodProbe):
    def look(self, site):
        print("looking")
        return Findings()


@probe("prints_nothing")
class ProbeThatTalksBelow(GoodProbe):
    def look(self, site):
        os.write(2, b"looking\n")
        return Findings()


@probe("whole_process_shares")
class ProbeThatMoves(GoodProbe):
    def look(self, site):
        os.environ["LOOKS"] = str(int(os.environ.get("LOOKS", "0")) + 1)
        return Findings()


@probe("whole_process_shares")
class ProbeThatLeavesThreads(GoodProbe):
    def look(self, site):
        threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
        return Findings()


@probe("several_threads")
class ProbeOfOneThread(GoodProbe):
    def __init__(self):
        self.busy = threading.Lock()

    def look(self, site):
        if not self.busy.acquire(blocking=False):
            raise RuntimeError("one at a time")
        time.sleep(0.05)
        self.busy.release()
        return Findings()


@probe("within_its_deadline")
class ProbeThatExits(GoodProbe):
    def look(self, site):
        sys.exit(1)
