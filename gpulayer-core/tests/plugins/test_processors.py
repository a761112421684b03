"""Names of processors, out of recorded pieces of /proc/cpuinfo.

Opteron: util-linux, tests/ts/lscpu/dumps/x86_64-hpdl585. Cortex-A9, MSM8992, Carmel, A64FX, Snapdragon 865, U74:
llvm-project, llvm/unittests/TargetParser/Host.cpp. Grace: a report to the Linux kernel's mailing list (part 0xd4f,
"the SoC is Nvidia Grace").
"""

import pytest

from gpulayer.plugins.builtin.processors import processor_name

OPTERON = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 16
model\t\t: 2
model name\t: Quad-Core AMD Opteron(tm) Processor 8354
cpu MHz\t\t: 2210.188
cpu cores\t: 4

processor\t: 1
model name\t: Quad-Core AMD Opteron(tm) Processor 8354
"""
CORTEX_A9 = """
processor       : 0
model name      : ARMv7 Processor rev 10 (v7l)
BogoMIPS        : 1393.66
CPU implementer : 0x41
CPU architecture: 7
CPU variant     : 0x2
CPU part        : 0xc09
CPU revision    : 10

Hardware        : Generic OMAP4 (Flattened Device Tree)
Revision        : 0000
Serial          : 00000000deadbeef
"""
CARMEL = """
processor       : 0
model name      : ARMv8 Processor rev 0 (v8l)
CPU implementer : 0x4e
CPU architecture: 8
CPU variant     : 0x0
CPU part        : 0x004
"""
GRACE = """processor\t: 71
BogoMIPS\t: 2000.00
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd4f
CPU revision\t: 0
"""
MSM8992 = """
Processor       : AArch64 Processor rev 3 (aarch64)
processor       : 0
processor       : 1
CPU implementer : 0x41
CPU part        : 0xd03

Hardware        : Qualcomm Technologies, Inc MSM8992
"""
SNAPDRAGON_865 = """
processor       : 0
CPU implementer : 0x51
CPU part        : 0x805
processor       : 1
processor       : 6
CPU implementer : 0x41
CPU part        : 0xd0d
"""
A64FX = "processor       : 0\nCPU implementer : 0x46\nCPU architecture: 8\nCPU part        : 0x001\n"
U74 = "processor       : 0\nhart            : 2\nisa             : rv64imafdc\nuarch           : sifive,u74-mc\n"


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (OPTERON, "Quad-Core AMD Opteron(tm) Processor 8354"),
        (CORTEX_A9, "ARM Cortex-A9"),
        (CARMEL, "NVIDIA Carmel"),
        (GRACE, "ARM Neoverse-V2"),
        (GRACE * 72, "ARM Neoverse-V2"),
        (MSM8992, "ARM Cortex-A53"),
        (SNAPDRAGON_865, "Qualcomm 0x805 + ARM Cortex-A77"),
        (A64FX, "Fujitsu A64FX"),
        (U74, "sifive,u74-mc"),
    ],
)
def test_a_processor_is_called_by_its_name(cpuinfo, name):
    assert processor_name(cpuinfo) == name


def test_the_number_of_a_core_that_nobody_knows_yet_is_its_name():
    assert processor_name(GRACE.replace("0xd4f", "0xe01")) == "ARM 0xe01"


def test_of_an_implementer_that_nobody_knows_what_the_kernel_calls_it_is_the_name():
    assert processor_name(CARMEL.replace("0x4e", "0x99")) == "ARMv8 Processor rev 0 (v8l)"


@pytest.mark.parametrize("text", ["", "\n\n", "nonsense", ":", "CPU part: 0xd4f", "CPU implementer: 0x41\nCPU part: ?"])
def test_where_nothing_tells_there_is_no_name(text):
    assert processor_name(text) == ""


def test_a_name_is_bounded_and_one_line():
    assert processor_name(f"model name: {'x' * 100_000}") == "x" * 128
    assert processor_name("model name\t: Intel(R)  Xeon(R)\0 CPU \t@ 2.20GHz") == "Intel(R) Xeon(R) CPU @ 2.20GHz"
    many = "".join(f"CPU implementer: 0x41\nCPU part: 0xe{number:02x}\n" for number in range(99))
    assert processor_name(many) == "ARM 0xe00 + ARM 0xe01 + ARM 0xe02 + ARM 0xe03"


def test_a_serial_number_is_in_no_name():
    assert "deadbeef" not in processor_name(CORTEX_A9)
