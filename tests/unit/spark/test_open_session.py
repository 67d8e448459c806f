import os

import pytest

from weir.errors import ConfigError
from weir.spark.submit import open_session


def test_a_session_of_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "SPARK_CONNECT_MODE_ENABLED": "1"})
    with pytest.raises(ConfigError, match=r"one of Spark Connect, .* and unset SPARK_REMOTE$"):
        open_session("local[1]", 1, "remote")
