"""The version of the package, which is read when it is asked for."""

from importlib.metadata import version

import pytest

import weir


def test_the_version_is_that_of_the_installed_package() -> None:
    assert weir.__version__ == version("weir-streaming")


def test_the_package_has_no_other_attribute_of_its_own() -> None:
    with pytest.raises(AttributeError, match="no attribute 'version'"):
        weir.version  # noqa: B018 - that it raises is the test
