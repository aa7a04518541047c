"""The store: versions in and out, pointers, room, and what is left after a crash."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edge_agent.core.errors import AgentError, ModelError, UsageError
from edge_agent.core.files import drop_lock, take_lock, write_new
from edge_agent.core.names import version_key
from edge_agent.inference.prepared.compile import collect
from edge_agent.models.manifest import load
from edge_agent.models.packages.archive import open_archive
from edge_agent.models.packages.build import Package, make, open_package, pack
from edge_agent.models.store.agent_lock import hold_agent_lock
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.housekeeping import Cleaning, clean_leftovers, make_room
from edge_agent.models.store.incoming import Incoming, interrupted_transfers, other_transfers
from edge_agent.models.store.install import (
    install_folder,
    install_handmade,
    install_incoming,
    install_package,
)
from edge_agent.models.store.local_blocks import plain_folders, stored_versions
from edge_agent.models.store.pointers import Trial
from edge_agent.models.store.store import NOTES, Store
from tests.helpers.crash_case import BATCH, push
from tests.helpers.fault_points import STORE_POINTS
from tests.helpers.model_folders import contents, make_model, weights
from tests.helpers.support import wait_until

ROOT = Path(__file__).resolve().parents[2]
BIG = 1 << 40


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Open an empty store."""
    return Store(tmp_path / "state")


def test_what_is_no_folder_in_place_of_one_is_put_aside(tmp_path: Path) -> None:
    """The agent ended with 2 at each start; only the models may be a link to what is not there."""
    (tmp_path / "staging").symlink_to(tmp_path / "nowhere")
    (tmp_path / "incoming").write_text("no folder")
    store = Store(tmp_path)
    assert store.staging.is_dir()
    assert not store.staging.is_symlink()
    assert store.incoming.is_dir()
    assert (tmp_path / "incoming.damaged").read_text() == "no folder"
    assert (tmp_path / "staging.damaged").readlink() == tmp_path / "nowhere"
    store.models.rmdir()
    os.mkfifo(store.models)
    assert Store(tmp_path).models.is_dir()
    assert (tmp_path / "models.damaged").is_fifo()
    store.models.rmdir()
    store.models.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="models: is a link to no folder; mount what it leads to"):
        Store(tmp_path)
    assert store.models.is_symlink()


def test_what_could_not_go_live_does_not_count_as_accepted(store: Store) -> None:
    """It was rejected on a full disk, and served from the next start, as the highest accepted."""
    put_in(store, "1")
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # files can be made, and not be written
    try:
        with pytest.raises(ModelError, match="activating it"):
            store.activate("face", "1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert not store.accepted("face", "1")
    store.activate("face", "1")
    assert store.accepted("face", "1")


def test_a_version_that_was_accepted_just_before_a_kill_is_not(store: Store) -> None:
    """It served from the next start, while it was tried again, and after its rejection."""
    put_in(store, "1")
    store.activate("face", "1")
    put_in(store, "2")
    write_new(store.models / "face" / "2" / NOTES / "accepted", b"")
    store.retract("face", "1")
    store.retract("face", "2")
    assert (store.accepted("face", "1"), store.accepted("face", "2")) == (True, False)


def put_in(store: Store, version: str, *, seed: int = 1, name: str = "face") -> Path:
    """Install a version by way of a folder; give that folder."""
    folder = make_model(
        store.root.parent / f"{name}-{version}", name=name, version=version, network=weights(seed)
    )
    install_folder(store, load(folder))
    return folder


def package_of(folder: Path, *, version: str = "2", network: bytes | None = None) -> Package:
    """Make a package of a new folder."""
    return make(load(make_model(folder, version=version, network=network)))


def receive(store: Store, package: Package) -> Incoming:
    """Open a transfer."""
    return Incoming(store, package.front, package.header, package.blocks)


def tree(folder: Path) -> set[str]:
    """List all that is in a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


# --- versions


def test_installed_version_is_the_folder(store: Store) -> None:
    """A stored version holds the same files, under its name and version, and nothing is left."""
    folder = put_in(store, "3")
    assert contents(store.models / "face" / "3") == contents(folder)
    assert store.names() == ("face",)
    assert store.versions("face") == ("3",)
    assert not list(store.staging.iterdir())


def test_versions_are_ordered_as_numbers(store: Store) -> None:
    """1.10 is above 1.9, and 2.0 is found as 2."""
    for version in ("1.10", "2.0", "1.9"):
        put_in(store, version)
    assert store.versions("face") == ("1.9", "1.10", "2.0")
    assert store.path("face", "2") == store.models / "face" / "2.0"


def test_version_is_never_overwritten(store: Store) -> None:
    """The same files again change nothing; other files under the same number are refused."""
    put_in(store, "3", seed=1)
    before = contents(store.models / "face" / "3")
    put_in(store, "3", seed=1)
    with pytest.raises(ModelError, match=r"face@3 is in the store already, with other files"):
        put_in(store, "3", seed=2)
    with pytest.raises(ModelError, match=r"face@3 is in the store already"):
        put_in(store, "3.0", seed=2)
    assert contents(store.models / "face" / "3") == before
    assert store.versions("face") == ("3",)
    assert not list(store.staging.iterdir())


def test_damaged_version_stays_where_it_cannot_be_replaced(store: Store, tmp_path: Path) -> None:
    """It was deleted first: one that a broken disk did not read for a while was gone for good."""
    put_in(store, "3", seed=1)
    store.activate("face", "3")
    there = tree(store.models / "face")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def damaged(_version: Path) -> bool:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # nothing can be opened now
        return True

    folder = make_model(tmp_path / "new", name="face", version="3", network=weights(2))
    with store.stage() as staged:
        shutil.copytree(folder, staged, dirs_exist_ok=True)
        try:
            with pytest.raises(ModelError, match=r"^face@3: storing it: Too many open files$"):
                store.commit(staged, "face", "3", is_damaged=damaged)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert tree(store.models / "face") == there
        assert store.commit(staged, "face", "3", is_damaged=lambda _version: True).is_dir()
    assert contents(store.models / "face" / "3") == contents(folder)
    assert not list(store.staging.iterdir())


def test_whole_tar_goes_in(store: Store, tmp_path: Path) -> None:
    """A packed tar is installed from memory; its transfer is remembered."""
    folder = make_model(tmp_path / "face", version="3")
    package = pack(folder, tmp_path / "face.tar")
    archive = open_archive((tmp_path / "face.tar").read_bytes(), "in/model")
    read = archive.members(package.header)
    model = install_package(store, package.front, package.header, package.blocks, read)
    assert model.path == store.models / "face" / "3"
    assert contents(model.path) == contents(folder)
    assert store.transfer("face", "3") == package.transfer
    assert store.transfer("face", "4") is None


def test_tar_made_by_hand_goes_in(store: Store, tmp_path: Path) -> None:
    """What `tar cf` makes of a model folder is installed."""
    folder = make_model(tmp_path / "made" / "face", version="3")
    tar = tmp_path / "hand.tar"
    subprocess.run(["tar", "cf", tar, "-C", tmp_path / "made", "face"], check=True)
    model = install_handmade(store, open_archive(tar, "hand.tar"))
    assert contents(model.path) == contents(folder)


def test_package_must_hold_what_it_says(store: Store, tmp_path: Path) -> None:
    """A manifest of another name or version, a missing file or a reserved name: nothing is left."""
    package = package_of(tmp_path / "face")
    other = json.loads(package.front.header)

    def refuse(changed: Package, expected: str, **says: str) -> None:
        header = type(changed.header).parse(json.dumps({**other, **says}).encode())
        with pytest.raises(ModelError, match=expected) as caught:
            install_package(store, changed.front, header, changed.blocks, changed.stream.read)
        assert "staging" not in str(caught.value)

    refuse(package, r"^hand@2: model\.toml says face@2, but the package says hand@2", name="hand")
    refuse(package, r"^face@9: model\.toml says face@2, but the package says face@9", version="9")
    assert store.names() == ()
    assert not list(store.staging.iterdir())
    (tmp_path / "bad").mkdir()
    tar = tmp_path / "bad.tar"
    make_model(tmp_path / "bad" / "face", version="2")
    (tmp_path / "bad" / "face" / "labels.txt").unlink()
    subprocess.run(["tar", "cf", tar, "-C", tmp_path / "bad", "face"], check=True)
    with pytest.raises(ModelError, match=r"^bad\.tar: model\.toml: output\.labels: .*missing"):
        install_handmade(store, open_archive(tar, "bad.tar"))
    assert store.names() == ()
    assert not list(store.staging.iterdir())


def test_delete_spares_what_is_needed(store: Store) -> None:
    """Live, previous and trial cannot be deleted, whatever way the number is written."""
    for version in ("1", "2", "3", "4"):
        put_in(store, version)
    for version in ("1", "2", "3"):
        store.activate("face", version)
    store.set_trial("face", Trial("4", "shadow", since=0.0))
    with pytest.raises(ModelError, match=r"face@3.0 is live; activate another version first"):
        store.delete("face", "3.0")
    with pytest.raises(ModelError, match="face@2 is previous"):
        store.delete("face", "2")
    with pytest.raises(ModelError, match="face@4 is on trial"):
        store.delete("face", "4")
    with pytest.raises(ModelError, match="face@9 is not in the store; it has 1, 2, 3, 4"):
        store.delete("face", "9")
    store.delete("face", "1")
    assert store.versions("face") == ("2", "3", "4")
    assert store.pointers("face").history == ("2", "3")


# --- pointers


def test_rollback_goes_back_step_by_step(store: Store) -> None:
    """Each rollback makes the version before live; at the first there is none before."""
    for version in ("1", "2", "3"):
        put_in(store, version)
        store.activate("face", version)
    assert store.rollback("face") == "2"
    assert store.rollback("face") == "1"
    with pytest.raises(ModelError, match="face: there is no version before 1"):
        store.rollback("face")
    assert store.pointers("face").live == "1"


def test_rollback_reaches_a_bundled_version(store: Store) -> None:
    """What ran before the first activation is previous, though it is not in the store."""
    put_in(store, "2")
    store.activate("face", "2", before="1")
    assert store.pointers("face").previous == "1"
    assert store.rollback("face") == "1"


def test_highest_never_falls(store: Store) -> None:
    """After a rollback, and even after deletion, an older version than the highest is refused."""
    for version in ("1", "2", "3"):
        put_in(store, version)
        store.activate("face", version)
    store.rollback("face")
    store.delete("face", "3")
    with pytest.raises(ModelError, match=r"face@2.9 is older than 3, which was accepted before"):
        store.check_not_older("face", "2.9")
    store.check_not_older("face", "3.0")
    store.check_not_older("face", "4")
    store.check_not_older("other", "0")


def test_trial_survives_reopening_and_ends_with_activation(store: Store) -> None:
    """What is on trial, how far, and how often the agent started meanwhile is on the disk."""
    put_in(store, "2")
    trial = Trial("2", "shadow", since=12.5, starts=2)
    store.set_trial("face", trial)
    assert Store(store.root).pointers("face").trial == trial
    assert not store.accepted("face", "2")
    store.activate("face", "2")
    assert store.pointers("face").trial is None
    assert store.accepted("face", "2")


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"schema": 1, "history": ["../../etc"]}', b"\xff" * 40]
)
def test_damaged_pointers_never_crash(store: Store, damage: bytes) -> None:
    """The damage is said once a start; live falls back to the highest that was not rolled back."""
    for version in ("1", "2", "3", "4"):
        put_in(store, version)
    store.activate("face", "1")
    store.activate("face", "4")
    store.rollback("face")
    store.activate("face", "2")
    store.rollback("face")
    store.activate("face", "2")
    (store.models / "face" / "pointers.json").write_bytes(damage)
    found = store.pointers("face")
    assert found.live is None
    assert found.highest == "4"
    assert [
        line
        for line in clean_leftovers(store, derived=collect.forms).lines
        if "pointers.json: is damaged" in line
    ]
    assert Catalog(store).live("face").manifest.version == "2", "4 was rolled back"
    store.activate("face", "3")
    assert store.pointers("face").live == "3"
    assert store.pointers("face").damage is None


class PointerMachine(RuleBasedStateMachine):
    """Any row of activations, rollbacks, trials and deletions."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(os.environ["PYTEST_STORE_DIR"]) / str(id(self))
        self.store = Store(self.folder / "state")
        self.highest: str | None = None

    @rule(version=st.sampled_from("123456"))
    def install(self, version: str) -> None:
        """Put a version in, or find it there."""
        put_in(self.store, version)

    @precondition(lambda self: self.store.versions("face"))
    @rule(data=st.data())
    def activate(self, data: st.DataObject) -> None:
        """Make any version that is there live."""
        version = data.draw(st.sampled_from(self.store.versions("face")))
        self.store.activate("face", version)
        self.highest = max(filter(None, (self.highest, version)), key=version_key)

    @precondition(lambda self: self.store.pointers("face").previous)
    @rule()
    def rollback(self) -> None:
        """Go back to what was previous."""
        previous = self.store.pointers("face").previous
        assert self.store.rollback("face") == previous

    @precondition(lambda self: self.store.versions("face"))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Delete what may go; what may not stays."""
        version = data.draw(st.sampled_from(self.store.versions("face")))
        role = self.store.pointers("face").role(version)
        if role is None:
            self.store.delete("face", version)
        else:
            with pytest.raises(ModelError, match=role):
                self.store.delete("face", version)

    @rule(quota=st.integers(0, 1_000_000))
    def collect(self, quota: int) -> None:
        """Ask for room, which may be refused."""
        before = self.store.versions("face")
        try:
            make_room(self.store, 1, quota, derived=collect.forms)
        except ModelError:
            assert self.store.versions("face") == before

    @invariant()
    def pointers_lead_somewhere(self) -> None:
        """Whatever the pointers name is there, and the highest never falls."""
        pointers = self.store.pointers("face")
        assert set(pointers.history) <= set(self.store.versions("face"))
        assert pointers.highest == self.highest

    def teardown(self) -> None:
        """Remove the store."""
        shutil.rmtree(self.folder)


def test_pointers_hold_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any row of operations the pointers name only versions that are there."""
    monkeypatch.setenv("PYTEST_STORE_DIR", str(tmp_path))
    PointerMachine.TestCase.settings = settings(
        max_examples=8, stateful_step_count=12, deadline=None
    )
    PointerMachine.TestCase("runTest").runTest()


# --- transfers


def test_a_collector_is_no_second_receiver(
    store: Store,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What only tests whether somebody receives it holds the store's lock: a push waits for that.

    It was rejected as being received already.
    """
    package = package_of(tmp_path / "face")
    receive(store, package).close()
    monkeypatch.setattr("edge_agent.core.files.LOCK_SECONDS", 0.0)  # waiting is said at once
    opened: list[Incoming] = []
    thread = threading.Thread(target=lambda: opened.append(receive(store, package)))
    with store.locked():
        lock = take_lock(store.incoming / package.transfer)
        thread.start()
        wait_until(lambda: "store.lock: another process" in caplog.text, "the receiver to wait")
        drop_lock(lock)
    thread.join()
    (incoming,) = opened
    incoming.close()


def test_transfer_goes_on_where_it_was(store: Store, tmp_path: Path) -> None:
    """Blocks that were put before an interruption are there after it, and are not asked for."""
    package = package_of(tmp_path / "face")
    with receive(store, package) as incoming:
        # The last one is padding, all zeros, and that is what a new file is full of.
        assert incoming.missing() == list(range(len(package.blocks) - 1))
        assert incoming.missing(2) == [0, 1]
        assert incoming.put(1, package.block(1))
        assert not incoming.put(1, package.block(1))
        incoming.flush()
    assert list(interrupted_transfers(store)) == [package.transfer]
    assert interrupted_transfers(store)[package.transfer] == package.front
    with receive(store, package) as incoming:
        assert incoming.have == 2
        assert 1 not in incoming.missing()
        for index in incoming.missing():
            incoming.put(index, package.block(index))
        assert incoming.complete
        model = install_incoming(store, incoming)
    assert contents(model.path) == contents(tmp_path / "face")
    assert not list(store.incoming.iterdir())


def test_wrong_block_is_refused(store: Store, tmp_path: Path) -> None:
    """A flipped bit, another block's bytes, a wrong length or number do not count as there."""
    package = package_of(tmp_path / "face")
    with receive(store, package) as incoming:
        good = package.block(1)
        with pytest.raises(ModelError, match="block 1: is not what"):
            incoming.put(1, bytes([good[0] ^ 1]) + good[1:])
        with pytest.raises(ModelError, match=r"block 1: expected .* bytes, found"):
            incoming.put(1, good[1:])
        with pytest.raises(ModelError, match="block 99: there are only"):
            incoming.put(99, good)
        with pytest.raises(ModelError, match="block -1: there are only"):
            incoming.put(-1, good)
        assert 1 in incoming.missing()


def test_pointers_that_cannot_be_read_are_not_replaced(store: Store) -> None:
    """What had been rolled back served again, and the next command made that last."""
    for version in ("1", "2"):
        put_in(store, version)
        store.activate("face", version)
    store.rollback("face")
    path = store.models / "face" / "pointers.json"
    kept = path.rename(path.with_name("kept"))
    path.symlink_to(path)  # no read gets past it
    catalog = Catalog(store)
    told = catalog.stands_in(catalog.live("face"))
    assert told is not None
    assert told.startswith(f"{path}: cannot be read: Too many levels")
    for change in (store.rollback, lambda name: store.activate(name, "2")):
        with pytest.raises(ModelError, match="cannot be read: Too many levels"):
            change("face")
    kept.replace(path)
    assert catalog.live("face").manifest.version == "1"
    assert catalog.stands_in(catalog.live("face")) is None


def test_blocks_damaged_on_disk_are_asked_for_again(store: Store, tmp_path: Path) -> None:
    """A block that the disk has lost is found at installation and again missing after a recheck."""
    package = package_of(tmp_path / "face")
    with receive(store, package) as incoming:
        for index in incoming.missing():
            incoming.put(index, package.block(index))
        data = store.incoming / package.transfer / "data"
        with data.open("r+b") as file:
            file.seek(package.blocks.offsets[2])
            file.write(b"\0\0\0\0")
        with pytest.raises(ModelError, match="block 2: is not what"):
            install_incoming(store, incoming)
        assert store.versions("face") == ()
        incoming.recheck()
        assert incoming.missing() == [2]


def test_known_blocks_are_not_asked_for(store: Store, tmp_path: Path) -> None:
    """Blocks in any stored version, in a bundled folder or in another transfer are taken there."""
    old = weights(1, 400_000)
    folder = make_model(tmp_path / "old", network=old)
    new = old[:380_000] + weights(2, 20_000)
    package = package_of(tmp_path / "new", network=new)

    install_folder(store, load(folder))
    with receive(store, package) as incoming:
        saved = incoming.fill(stored_versions(store))
        sent = sum(package.blocks.lengths[index] for index in incoming.missing())
        # The padding at the end is zeros, which a new file has already.
        assert saved + sent == package.header.size - package.blocks.lengths[-1]
        assert sent < 0.2 * package.header.size
        with pytest.raises(ModelError, match="face@2: is being received already"):
            receive(store, package)

    bare = Store(tmp_path / "bare")
    with receive(bare, package) as incoming:
        assert incoming.fill(plain_folders([folder, tmp_path / "absent"])) == saved
        for index in incoming.missing():
            incoming.put(index, package.block(index))
    again = package_of(tmp_path / "again", version="3", network=new)
    with receive(bare, again) as incoming:
        incoming.fill(other_transfers(bare, again.transfer))
        # Only the manifest with its new version is sent.
        assert incoming.missing() == [0]


def test_stored_version_gives_back_foreign_blocks(store: Store, tmp_path: Path) -> None:
    """Blocks that another program cut, across headers and files, are found again all the same."""
    package = pack(make_model(tmp_path / "face"), tmp_path / "face.tar")
    size, sent = package.header.size, package.stream.read
    lengths = [50_001] * (size // 50_001) + [size % 50_001]
    foreign = cut_elsewhere(package, lengths)
    install_package(store, foreign.front, foreign.header, foreign.blocks, sent)
    renamed = json.loads(foreign.front.header) | {"created": "2026-01-01T00:00:00.000Z"}
    front = type(foreign.front)(json.dumps(renamed).encode(), None, foreign.front.block_list)
    header = type(foreign.header).parse(front.header)
    with Incoming(store, front, header, foreign.blocks) as incoming:
        assert incoming.fill(stored_versions(store)) == size
        assert incoming.complete


def cut_elsewhere(package: Package, lengths: list[int]) -> Package:
    """Give the same package with blocks of other lengths."""
    import hashlib

    blocks = type(package.blocks).of(lengths, [b""] * len(lengths))
    digests = [
        hashlib.sha256(package.stream.read(offset, length)).digest()
        for offset, length in zip(blocks.offsets, lengths, strict=True)
    ]
    blocks = type(blocks).of(lengths, digests)
    data = blocks.to_bytes()
    says = json.loads(package.front.header) | {
        "blocks": len(lengths),
        "blocks_sha256": hashlib.sha256(data).hexdigest(),
    }
    front = type(package.front)(json.dumps(says).encode(), None, data)
    return Package(front, type(package.header).parse(front.header), blocks, package.stream)


def test_damaged_notes_cost_blocks_only(store: Store, tmp_path: Path) -> None:
    """A version whose notes or files are damaged gives no block, or no wrong one."""
    put_in(store, "1")
    package = package_of(tmp_path / "new")
    network = store.models / "face" / "1" / "model.onnx"
    network.write_bytes(weights(9, network.stat().st_size))
    with receive(store, package) as incoming:
        incoming.fill(stored_versions(store))
        assert len(incoming.missing()) >= len(package.blocks) - 2
        deep = '{"a":' * 20_000 + "1" + "}" * 20_000
        layout = store.models / "face" / "1" / NOTES / "layout.json"
        for damage in ("[[", deep, '[["model.onnx", Infinity]]'):
            layout.write_text(damage)
            assert incoming.fill(stored_versions(store)) == 0
            assert Catalog(store).find("face", "1") is not None
        layout.write_text(r'[["a\u0000b", 3]]')
        with pytest.raises(ModelError, match="has changed on the disk"):
            Catalog(store).find("face", "1")


def test_a_folder_in_the_place_of_a_note_does_not_end_the_agent(store: Store) -> None:
    """It did so at every start."""
    put_in(store, "1")
    note = store.models / "face" / "1" / NOTES / "package.json"
    note.unlink()
    note.mkdir()
    assert store.transfer("face", "1") is None
    stored_versions(store)


# --- room


def test_oldest_unused_goes_first(store: Store) -> None:
    """Room is made by deleting what was unused longest, and no more than is needed."""
    for version in "123456":
        put_in(store, version, seed=int(version))
        store.activate("face", version)
    store.activate("face", "1")
    taken = sum(path.stat().st_size for path in store.models.rglob("*") if path.is_file())
    assert make_room(store, 1000, BIG, derived=collect.forms) == ()
    assert make_room(store, 300_000, taken, derived=collect.forms) == ("face@2", "face@3")
    assert store.versions("face") == ("1", "4", "5", "6")


def test_what_was_used_by_a_clock_that_ran_ahead_goes_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was never the one unused longest: newer ones went, and it stayed for ever."""
    later = time.time() + 10 * 365 * 86400
    for version in "123456":
        put_in(store, version, seed=int(version))
        with monkeypatch.context() as patch:
            if version == "3":
                patch.setattr(time, "time", lambda: later)
            store.activate("face", version)
    taken = sum(path.stat().st_size for path in store.models.rglob("*") if path.is_file())
    assert make_room(store, 1000, taken, derived=collect.forms) == ("face@3",)


def test_what_is_needed_is_never_collected(store: Store) -> None:
    """Live, previous, trial and pinned versions stay, and then nothing at all is deleted."""
    for version in "12345":
        put_in(store, version, seed=int(version))
    for version in "123":
        store.activate("face", version)
    store.set_trial("face", Trial("4", "trial", since=0.0))
    before = tree(store.models)
    with pytest.raises(ModelError, match=r"does not fit: 0\.3 MB needed, .* raise quota_mb"):
        make_room(
            store, 300_000, 1_150_000, keep=[("face", "5.0"), ("face", "1")], derived=collect.forms
        )
    assert tree(store.models) == before
    assert make_room(store, 300_000, 1_150_000, keep=[("face", "5.0")], derived=collect.forms) == (
        "face@1",
    )


def test_larger_than_the_quota_deletes_nothing(store: Store) -> None:
    """A model that could never fit is refused at once."""
    put_in(store, "1")
    put_in(store, "2")
    store.activate("face", "2")
    before = tree(store.root)
    with pytest.raises(ModelError, match=r"does not fit: 3\.0 MB needed"):
        make_room(store, 3_000_000, 2_000_000, derived=collect.forms)
    assert tree(store.root) - {"store.lock"} == before - {"store.lock"}


def test_more_than_the_disk_has_is_refused(store: Store) -> None:
    """Half the free disk is the most that can be unpacked."""
    with pytest.raises(ModelError, match="needed while it is unpacked, but the disk has"):
        make_room(store, shutil.disk_usage(store.root).free, BIG * BIG, derived=collect.forms)


def test_resting_transfer_makes_room_but_an_open_one_does_not(store: Store, tmp_path: Path) -> None:
    """A transfer that nobody has open may go; one that is being received may not."""
    package = package_of(tmp_path / "face")
    with receive(store, package):
        with pytest.raises(ModelError, match="does not fit"):
            make_room(store, 900_000, 1_000_000, derived=collect.forms)
        assert (
            make_room(store, 900_000, 1_000_000, transfer=package.transfer, derived=collect.forms)
            == ()
        )
    assert make_room(store, 900_000, 1_000_000, derived=collect.forms) == (package.transfer,)
    assert not list(store.incoming.iterdir())


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from edge_agent.core.errors import ModelError
from edge_agent.models.store.incoming import Incoming
from edge_agent.models.store.install import install_folder, install_package
from edge_agent.models.manifest import load
from edge_agent.models.packages.build import make
from edge_agent.models.store.store import Store

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
how, folder, state = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
if how == "limit":
    # No file longer than this: what a quota of the file system does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = Store(state)
package = make(load(folder))
def incoming():
    Incoming(store, package.front, package.header, package.blocks)
def unpacking():
    install_package(store, package.front, package.header, package.blocks, package.stream.read)
def copying():
    install_folder(store, load(folder))
for way in (incoming, unpacking, copying):
    try:
        way()
    except ModelError as problem:
        print(problem)
    left = [path for path in state.rglob("*") if path.is_file() and path.suffix != ".lock"]
    print(len(left), "left")
"""

FULL = "the disk is full; delete models that are not used, or lower quota_mb"


@pytest.mark.parametrize("how", ["limit", "tmpfs"])
def test_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, how: str) -> None:
    """On a full disk every way in ends with one line, and all that was written is gone."""
    folder = make_model(tmp_path / "face", network=weights(1, 2_000_000))
    state = tmp_path / "state"
    state.mkdir()
    command = [sys.executable, "-c", FULL_DISK, how, str(folder), str(state)]
    if how == "tmpfs":
        mount = f'mount -t tmpfs -o size=1m none "{state}" && exec "$@"'
        command = ["unshare", "-rm", "sh", "-c", mount, "sh", *command]
        probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(state)]
        if shutil.which("unshare") is None or subprocess.run(probe, check=False).returncode:
            pytest.skip("mounting a small file system of our own is not allowed here")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"face@1: preparing to receive it: {FULL}",
        "0 left",
        f"face@1: unpacking it: {FULL}",
        "0 left",
        f"{folder}: copying it: {FULL}",
        "0 left",
    ]


# --- crashes


def state_of(store: Store) -> dict[str, object]:
    """Say what a store holds, as a user would: versions, their files, what is live."""
    return {
        name: (
            store.pointers(name).history,
            store.pointers(name).trial,
            {each: contents(store.models / name / each) for each in store.versions(name)},
        )
        for name in store.names()
    }


@pytest.fixture
def prepared(tmp_path: Path) -> tuple[Path, Package]:
    """Make a store with versions 1 and 2, 2 being live, and a package of version 3."""
    store = Store(tmp_path / "state")
    old = weights(1)
    for version in ("1", "2"):
        folder = make_model(tmp_path / version, version=version, network=old)
        install_folder(store, load(folder))
        store.activate("face", version)
    new = make_model(tmp_path / "3", version="3", network=weights(3, 700_000))
    pack(new, tmp_path / "face-3.tar")
    package = open_package(tmp_path / "face-3.tar")
    assert package is not None
    return store.root, package


def test_killed_anywhere_it_is_the_old_or_the_new(
    tmp_path: Path, prepared: tuple[Path, Package]
) -> None:
    """Killed at every fault point, every time it is reached: old or new, and a retry completes.

    Afterward every version that is there is whole, blocks that were durable are not sent again,
    and the files are those of a push that was never interrupted.
    """
    state, package = prepared
    whole = tmp_path / "whole"
    shutil.copytree(state, whole)
    sent_at_once = push(whole, package)
    expected, files = state_of(Store(whole)), tree(whole)
    whole_files = {version: contents(tmp_path / version) for version in "123"}
    out = tmp_path / "crashed"
    out.mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.helpers.crash_case",
            state,
            tmp_path / "face-3.tar",
            "--sweep",
            out,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert {case["point"] for case in cases} == set(STORE_POINTS)
    for case in cases:
        label = f"{case['point']}:{case['nth']}"
        store = Store(Path(case["folder"]))
        clean_leftovers(store, derived=collect.forms)
        assert Catalog(store).live("face").manifest.version in {"2", "3"}, label
        for version in store.versions("face"):
            assert contents(store.models / "face" / version) == whole_files[version], label
        assert not list(store.staging.iterdir()), label
        sent = push(store.root, package)
        if case["point"] == "block.durable":
            assert sent == max(0, sent_at_once - BATCH * case["nth"]), label
        assert state_of(store) == expected, label
        assert tree(store.root) == files, label


def test_what_others_are_doing_is_not_cleaned_up(store: Store, tmp_path: Path) -> None:
    """Cleaning at start spares what is being staged or received at that moment."""
    package = package_of(tmp_path / "face")
    with store.stage() as staged, receive(store, package) as incoming:
        incoming.put(0, package.block(0))
        assert clean_leftovers(Store(store.root), derived=collect.forms, now=9e9) == Cleaning()
        assert staged.is_dir()
    (line,) = clean_leftovers(store, derived=collect.forms, now=9e9).lines
    assert line.endswith(f"{package.transfer}: nobody went on with it for a week, removed")
    assert not list(store.incoming.iterdir())


def test_strange_things_are_said_not_removed(store: Store) -> None:
    """What is no version, no transfer or no pointer file of ours is named; only rubbish goes."""
    put_in(store, "1")
    (store.models / "face" / "notes.txt").write_text("mine")
    (store.models / "face" / ".pointers.json.1234").write_text("half")
    (store.incoming / "what").mkdir()
    (store.staging / "half").mkdir()
    lines = clean_leftovers(store, derived=collect.forms).lines
    assert len(lines) == 4
    assert any("notes.txt: does not belong here" in line for line in lines)
    assert (store.models / "face" / "notes.txt").exists()
    assert not (store.models / "face" / ".pointers.json.1234").exists()
    assert not list(store.incoming.iterdir())
    assert not list(store.staging.iterdir())


# --- several at once


def test_one_agent_on_a_store(store: Store) -> None:
    """A second agent is refused; whether one runs can be asked; the lock ends with it."""
    assert not store.has_agent()
    with hold_agent_lock(store.root):
        assert Store(store.root).has_agent()
        with (
            pytest.raises(UsageError, match="another agent runs on it"),
            hold_agent_lock(store.root),
        ):
            pytest.fail("two agents on one store")
    assert not store.has_agent()
    with hold_agent_lock(store.root):
        pass


def test_a_lock_that_cannot_be_opened_for_now_is_no_wrong_setting(store: Store) -> None:
    """Exit 2 kept systemd from starting the agent again, though the disk was back soon."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # nothing can be opened
    try:
        with pytest.raises(AgentError) as caught, hold_agent_lock(store.root):
            pytest.fail("it could not be locked")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert str(caught.value) == f"state_dir: {store.root}: Too many open files"
    assert not isinstance(caught.value, UsageError)


def test_writers_do_not_lose_each_others_changes(store: Store) -> None:
    """Eight threads, each with a store of its own, activate versions: all is there afterward."""

    def note(first: int) -> None:
        mine = Store(store.root)
        for number in range(first, first + 10):
            mine.activate("face", str(number))

    threads = [threading.Thread(target=note, args=(first,)) for first in range(0, 80, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(store.pointers("face").used) == {str(number) for number in range(80)}


@pytest.fixture
def service_user() -> int:
    """Give a user id that is not ours, which only root can give files to."""
    if os.geteuid() != 0:
        pytest.skip("giving files away needs root")
    return 12345


def test_root_leaves_files_to_the_stores_owner(tmp_path: Path, service_user: int) -> None:
    """After root has added, activated and received, everything belongs to the service's user."""
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, service_user, service_user)
    store = Store(state)
    put_in(store, "1")
    store.activate("face", "1")
    receive(store, package_of(tmp_path / "new")).close()
    with hold_agent_lock(store.root):
        owners = {path.stat().st_uid for path in state.rglob("*")}
    assert owners == {service_user}


def test_state_dir_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    """A state_dir that is a file is wrong usage, with the mend."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"state_dir: .*file cannot be used: .*choose a folder"):
        Store(tmp_path / "file")
