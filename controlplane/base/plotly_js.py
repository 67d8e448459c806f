"""The bundle of plotly.js that browsers get.

The pages draw on Cartesian axes only, so the small bundle is enough, a third of the whole one. It
comes from npm (``package.json``), which not every machine has. Without it browsers get the whole
bundle, which the Python package ``plotly`` carries: same version, same pictures.
"""

from importlib.util import find_spec
from pathlib import Path

SMALL = Path("node_modules", "plotly.js-cartesian-dist-min", "plotly-cartesian.min.js")


def bundle(root: Path) -> Path:
    """The file of the small bundle if installed under ``root``, else of the whole one."""
    small = root / SMALL
    if small.is_file():
        return small
    package = find_spec("plotly")  # Every process runs this, and none needs to import it.
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).with_name("package_data") / "plotly.min.js"
