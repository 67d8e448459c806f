"""Settings of ``manage.py weir_up``: one machine, one person.

A command that is started beside it, such as ``weir_token``, finds its servers by itself.
"""

import os
from pathlib import Path

from controlplane.base import env
from controlplane.embedded.running import running_settings

_ROOT = Path(__file__).resolve().parent.parent.parent
for _name, _value in running_settings(Path(os.environ.get("WEIR_HOME", _ROOT / ".weir"))).items():
    if f"{_name}_FILE" not in os.environ:
        os.environ.setdefault(_name, _value)

from controlplane.settings.base import *  # noqa: E402, F403

SECRET_KEY = env.text("SECRET_KEY", "for-development-on-one-machine-only")
DEBUG = env.flag("DEBUG", False)
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]"]
