"""Which plotly.js browsers get."""

import json
from pathlib import Path

from django.conf import settings
from plotly.offline import get_plotlyjs_version

from controlplane.base import plotly_js


def test_the_small_bundle_is_taken_where_npm_installed_it(tmp_path: Path) -> None:
    whole = plotly_js.bundle(tmp_path)
    assert whole.name == "plotly.min.js"
    assert whole.is_file()
    small = tmp_path / plotly_js.SMALL
    small.parent.mkdir(parents=True)
    small.touch()
    assert plotly_js.bundle(tmp_path) == small


def test_both_bundles_are_of_one_version() -> None:
    """Otherwise: ``npm install --save-exact`` the small one in the version of the whole one."""
    package = json.loads((settings.BASE_DIR / "package.json").read_text())
    assert package["dependencies"] == {plotly_js.SMALL.parts[1]: get_plotlyjs_version()}
