"""The end of files that several checkpoints name."""

from collections.abc import Callable

from tests.unit.output.test_needs import JOB, manifest
from weir.ids import CheckpointId
from weir.storage.manifest import dump
from weir.storage.memory import MemoryStore
from weir.storage.shared_files import discard_checkpoint, sweep_shared

BASE, OLD = "shared/1-1/a", "shared/1-1/b"


class Disturbed(MemoryStore):
    """Something happens before one of its files is read."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], None]] = {}

    def read(self, path: str) -> bytes:
        if (happens := self.before.pop(path, None)) is not None:
            happens()
        return super().read(path)

    def complete(self, number: int, *paths: str) -> None:
        for path in paths:
            self.put(f"job/{path}", b"state")
        self.put(f"job/chk-{number}/manifest", dump(manifest(number, *paths)))


def test_a_file_goes_when_no_manifest_names_it() -> None:
    store = Disturbed()
    store.complete(1, BASE, OLD)
    store.complete(2, BASE)
    discard_checkpoint(store, JOB, CheckpointId(1))
    assert store.list() == ["job/chk-2/manifest", f"job/{BASE}"]


def test_a_checkpoint_that_completes_while_its_base_is_discarded_keeps_its_files() -> None:
    """Two processes delete: the manifests were listed before the newest one was there, and that of
    its base is gone when it is to be read."""
    store = Disturbed()
    store.complete(1, BASE, OLD)
    store.complete(2, BASE)

    def goes_on() -> None:
        store.complete(3, BASE)
        store.delete("job/chk-2/manifest")

    store.before["job/chk-2/manifest"] = goes_on
    discard_checkpoint(store, JOB, CheckpointId(1))
    assert store.list() == ["job/chk-3/manifest", f"job/{BASE}"]


def test_a_manifest_that_cannot_be_read_keeps_all_shared_files() -> None:
    store = Disturbed()
    store.complete(1, BASE)
    store.put("job/chk-2/manifest", b"damaged")
    discard_checkpoint(store, JOB, CheckpointId(1))
    assert sweep_shared(store, JOB, lambda attempt, number: True) == 0
    assert store.list() == ["job/chk-2/manifest", f"job/{BASE}"]


def test_a_sweep_leaves_what_is_being_written() -> None:
    store = Disturbed()
    store.complete(1, BASE)
    for path in (OLD, "shared/1-2/a", "shared/2-3/a"):
        store.put(f"job/{path}", b"state")
    assert sweep_shared(store, JOB, lambda attempt, number: number < 3) == 2
    assert store.list() == ["job/chk-1/manifest", f"job/{BASE}", "job/shared/2-3/a"]
