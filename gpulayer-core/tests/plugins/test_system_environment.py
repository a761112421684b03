"""The ``system`` environment: what jobs get of the worker's own variables, and above all what they do not."""

from gpulayer.plugins import BuildSite, EnvironmentPlan, EnvironmentRequest
from gpulayer.plugins.builtin.system import SystemEnvironment
from gpulayer.spec.machine import WorkerFacts

FACTS = WorkerFacts(platform="linux-x86_64", version="0", cpus=8, memory_bytes=1)


def variables(folder, **environment):
    builder = SystemEnvironment()
    plan = builder.plan(EnvironmentRequest("system", folder))
    assert plan == EnvironmentPlan()  # there is nothing to build
    site = BuildSite(folder, FACTS, environment, log=lambda _line: None, is_cancelled=lambda: False)
    return builder.build(plan, site).variables


def test_only_the_allow_list_of_the_workers_environment_is_handed_on(tmp_path):
    worker = {
        "GPULAYER_TOKEN": "glc_secret",
        "GPULAYER_URL": "http://x",
        "PYTHONPATH": "/p",
        "PYTHONHOME": "/p",
        "VIRTUAL_ENV": "/v",
        "AWS_SECRET_ACCESS_KEY": "s",
        "LD_PRELOAD": "/x.so",
        "INVOCATION_ID": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "SSL_CERT_FILE": "/c",
        "LC_ALL": "C",
        "TZ": "UTC",
    }
    made = variables(tmp_path, **worker)
    assert {name for name in made if name in worker} == {"SSL_CERT_FILE", "LC_ALL", "TZ"}
    assert "secret" not in str(made)


def test_a_job_always_has_a_path_and_is_watched_while_it_runs(tmp_path):
    assert variables(tmp_path) == {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
    assert variables(tmp_path, PATH="/mine")["PATH"] == "/mine"
