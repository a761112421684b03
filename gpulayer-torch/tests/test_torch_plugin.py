"""The torch plugin and its launcher: the contracts, and the plan by value."""

import subprocess
import sys
from dataclasses import replace

import pytest

import gpulayer_torch.plugin
from gpulayer.plugins import LaunchRefused, Machine, ProcessLauncher
from gpulayer.testing import LauncherContract, PluginContract, an_assignment, cuda_devices, machine_facts, site_in
from gpulayer_torch import TorchLauncher


class TestPlugin(PluginContract):
    @pytest.fixture
    def plugin(self):
        return gpulayer_torch.plugin


class TestLauncher(LauncherContract):
    @pytest.fixture
    def launcher(self):
        return TorchLauncher()


@pytest.fixture
def site(tmp_path):
    return site_in(tmp_path)


@pytest.fixture
def machine():
    return Machine(machine_facts(devices=cuda_devices(2)), {"PATH": "/bin"})


def test_it_is_the_plan_of_process_with_the_variables_of_one_rank(site, machine):
    attempt = an_assignment(devices=("GPU-1",), cpus=3)
    plain = ProcessLauncher().plan(attempt, site, machine)
    assert TorchLauncher().plan(attempt, site, machine) == replace(
        plain,
        env={
            **plain.env,
            "RANK": "0",
            "LOCAL_RANK": "0",
            "NODE_RANK": "0",
            "GROUP_RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
            "OMP_NUM_THREADS": "3",
        },
    )


def test_a_jobs_own_number_of_threads_stays_and_its_idea_of_ranks_does_not(site, machine):
    attempt = an_assignment(env=(("OMP_NUM_THREADS", "16"), ("WORLD_SIZE", "8")), cpus=3)
    env = TorchLauncher().plan(attempt, site, machine).env
    assert env["OMP_NUM_THREADS"] == "16"
    assert env["WORLD_SIZE"] == "1"


def test_more_than_one_device_is_refused_with_what_to_do(site, machine):
    with pytest.raises(LaunchRefused, match="asks for 2") as refused:
        TorchLauncher().plan(an_assignment(devices=("GPU-0", "GPU-1")), site, machine)
    assert "torchrun --standalone --nproc-per-node 2" in refused.value.hint


def test_importing_the_plugin_imports_no_torch():
    code = "import sys; sys.modules['torch'] = None; import gpulayer_torch.plugin"
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"], check=True)
