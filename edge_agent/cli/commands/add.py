"""`edge-agent add`: installs a model from a local path into the store, without a broker."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import ModelError, UsageError
from ...core.names import is_name, safe_name, version_key
from ...core.privileges import User, acting_as, hand_over
from ...core.text import printable
from ...inference.engines.registry import engine_words
from ..options import Options, add_config, load_settings

if TYPE_CHECKING:
    from ...config.settings import Settings
    from ...models.manifest import ModelFolder
    from ...models.store.catalog import Catalog
    from ...models.store.store import Store

AGENT_SECONDS = 60.0
"""How long a running agent may be silent about the trial."""


EXAMPLES = (
    "edge-agent add face-detector/              a model folder, into the store",
    "edge-agent add yolov8n.onnx --name people  under another name",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "path", metavar="PATH", help="model folder, packed .tar, .onnx, .xml or .tflite"
    )
    parser.add_argument("--name", metavar="N", help="name to use instead of the model's own")
    parser.add_argument(
        "--version",
        metavar="V",
        dest="model_version",
        help="version to use instead of the model's own, or the next",
    )
    parser.add_argument(
        "--allow-older", action="store_true", help="allow a version below the highest ever accepted"
    )
    add_config(parser)


def main(options: Options) -> int:
    """Install; 0 when it is accepted, 1 when it is rejected."""
    path = Path(options.path)
    if not options.path or not path.exists():
        raise UsageError(f"PATH: {options.path!r}: no such file or folder")
    from ...config.load import find_file
    from ..service_settings import as_the_service

    file = find_file(options.config)
    with as_the_service(file):
        return _add(path, file, options)


def _add(path: Path, file: Path | None, options: Options) -> int:
    settings = load_settings(options)
    from ...models.importing import file_of, import_model
    from ...models.store.install import install_folder
    from ...serving.choice import match_profile, variants_here
    from ...serving.loader import open_library, open_store
    from ..service_user import state_user

    path = file_of(path)
    user = state_user(settings.state)
    with acting_as(user, reading=True):
        store = open_store(settings)
        catalog = open_library(settings, store)
        here = variants_here(settings, *match_profile(settings))
        version = _version_of(path, options, store, catalog)
    # Files it names may only be readable by root.
    with import_model(path, options.name, version, here) as imported:
        for assumption in imported.assumptions:
            print(f"assumed  {assumption}")
        folder = imported.folder
        if folder.manifest.variants:
            print(
                f"of its variants ({', '.join(folder.manifest.variants)}), this device takes"
                f" {folder.variant or 'none'}"
            )
        name, version = folder.manifest.name, folder.manifest.version
        with acting_as(user, reading=True):
            if not options.allow_older:
                _refuse_older(store, name, version)
        with _handed_over(folder, user) as copied:
            _try_out(settings, options.config, copied, user)
            with acting_as(user, reading=True):
                install_folder(store, copied)
    of = f"the state folder of {file}" if file else "the default; --config FILE names settings"
    print(printable(f"into {store.root}, {of}"))
    with acting_as(user, reading=True):
        is_running = store.has_agent()
    if not is_running:
        print(f"{name}@{version} is installed; the agent tries it at its next start")
        return 0
    with acting_as(user, reading=True):
        _hand_over(store, name, version)
    print(f"{name}@{version} is installed and live")
    return 0


def _version_of(path: Path, options: Options, store: Store, catalog: Catalog) -> str | None:
    """Return the version to install the model as; None: its own."""
    from ...models.importing import BARE

    name: str | None = options.name
    version: str | None = options.model_version
    if path.suffix in BARE and version is None and (name is None or is_name(name)):
        version = _next_version(store, catalog, name or safe_name(path.stem))
    return version


@contextmanager
def _handed_over(folder: ModelFolder, user: User | None) -> Iterator[ModelFolder]:
    """Copy a folder for the user who owns the store; if that is None, use it in place."""
    if user is None:
        yield folder
        return
    from ...core.files import disk_errors
    from ...core.scratch import scratch_folder
    from ...models.importing import copy_folder
    from ...models.manifest import load

    with scratch_folder("handed") as made:
        with disk_errors(f"{folder.path}: copying it"):
            copy_folder(folder.path, made)
            hand_over(made, user)
        yield load(made, () if folder.variant is None else (folder.variant,))


def _refuse_older(store: Store, name: str, version: str) -> None:
    try:
        store.check_not_older(name, version)
    except ModelError as problem:
        raise ModelError(f"{problem}; --allow-older installs it all the same") from None


def _try_out(
    settings: Settings, config: str | None, folder: ModelFolder, user: User | None
) -> None:
    """Check that the model runs on this device and reproduces its golden outputs."""
    from ..model_check import check_model

    kind = folder.manifest.input.kind
    checked = check_model(settings, config, folder, kind, user)
    for reason in checked.passed_over:
        print(f"passed over: {reason}")
    print(f"{folder.manifest.id} runs on {engine_words(checked.engine)}")
    if checked.golden is None:
        print(f"no {folder.golden.name}: its outputs are not compared with anything")
    else:
        print(printable(f"golden: {checked.golden}"))


def _hand_over(store: Store, name: str, version: str) -> None:
    """Ask the agent running on this store to try the model like a pushed one."""
    from ...delivery.local_requests import LocalRequests

    requests = LocalRequests(store)
    request = requests.request(name, version)
    try:
        requests.wait(request, lambda state: print(f"agent: {state}", flush=True), AGENT_SECONDS)
    except ModelError as problem:
        raise ModelError(f"{name}@{version}: {problem}") from None
    finally:
        requests.forget(request)


def _next_version(store: Store, catalog: Catalog, name: str) -> str:
    """Return the highest known version + 1."""
    versions = [entry.version for entry in catalog.entries(name) if entry.version]
    # A version that was once accepted counts even if its folder is gone.
    versions += [highest] if (highest := store.pointers(name).highest) else []
    if not versions:
        return "1"
    return str(max(version_key(version) for version in versions)[0] + 1)
