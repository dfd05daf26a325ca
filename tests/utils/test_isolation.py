"""New processes import nothing from the working directory and see no tokens."""

import json

import pytest

from hf_ssm.utils.isolation import environment_without_secrets, run_python

SHOW = """
import json, os
try:
    import planted
except ImportError:
    planted = None
import random
print(json.dumps([planted is None, random.__file__, sorted(os.environ), sys.argv[1:], sys.stdin.read()]))
"""
SECRETS = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "PGPASSWORD",
    "SSH_AUTH_SOCK",
)


# On Python 3.10 the variable has no effect.
@pytest.mark.parametrize("variable", ["1", ""])
def test_nothing_of_the_working_directory_and_no_secret(tmp_path, monkeypatch, variable):
    for name in ("planted", "random"):
        (tmp_path / f"{name}.py").write_text("")
    for name in SECRETS:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("HARMLESS", "1")
    monkeypatch.chdir(tmp_path)
    done = run_python(SHOW, "a b", "-c", input="text", environment={"MORE": "x", "PYTHONSAFEPATH": variable})
    assert done.returncode == 0, done.stderr
    is_absent, random, names, arguments, text = json.loads(done.stdout)
    assert is_absent and str(tmp_path) not in random
    assert not {*SECRETS} & {*names} and {"HARMLESS", "MORE", "PATH"} <= {*names}
    assert (arguments, text) == (["a b", "-c"], "text")
    assert "secret" not in environment_without_secrets().values()
