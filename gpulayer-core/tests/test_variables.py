"""What a worker or a control plane itself runs with, of the variables of whoever starts it."""

from gpulayer.variables import HANDED_ON, background_variables


def test_tokens_and_credentials_of_whoever_starts_a_worker_stay_with_them():
    secrets = {
        "GPULAYER_TOKEN": "glc_x",
        "GPULAYER_URL": "http://x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "GOOGLE_APPLICATION_CREDENTIALS": "/x",
        "HF_TOKEN": "x",
        "HTTPS_PROXY": "http://me:secret@proxy",
        "SSH_AUTH_SOCK": "/x",
        "LD_PRELOAD": "/x",
    }
    kept = {
        "PATH": "/bin",
        "HOME": "/h",
        "LC_ALL": "C",
        "PYTHONPATH": "/p",
        "VIRTUAL_ENV": "/v",
        "LD_LIBRARY_PATH": "/l",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "GPULAYER_STATE_DIR": "/s",
        "GPULAYER_PLUGINS": "licences",
        "GPULAYER_PLUGINS_IMPORT_S": "30",
        "GPULAYER_STRICT": "1",
        "GPULAYER_PLUGIN_LICENCES_SERVER": "/l",
    }
    assert background_variables({**secrets, **kept}) == kept


def test_jobs_get_nothing_of_what_plugins_are_told():
    assert not [name for name in HANDED_ON if name.startswith("GPULAYER")]
