"""`edge-agent add`: install a model from a local path into the store, no broker needed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..errors import ModelError, UsageError
from ..names import version_key
from . import Options, load_settings


def main(options: Options) -> int:
    """Install; 0 when it is accepted, 1 when it is rejected."""
    path = Path(options.path)
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    settings = load_settings(options)
    from ..agent import library_of, match_profile, open_store
    from ..bringing import BARE, bring
    from ..serving import Engines

    store = open_store(settings)
    library = library_of(settings, store)
    match, facts = match_profile(settings)
    with ExitStack() as stack:
        if path.suffix == ".tar":
            folder = stack.enter_context(_unpacked(path, options))
        else:
            brought = stack.enter_context(bring(path, options.name, options.model_version))
            folder = brought.folder
            if path.suffix in BARE and options.model_version is None:
                version = _next_version(library, folder.manifest.name)
                brought = stack.enter_context(bring(path, options.name, version))
                folder = brought.folder
            for assumption in brought.assumptions:
                print(f"assumed: {assumption}")
        manifest = folder.manifest
        if not options.allow_older:
            store.refuse_older(manifest.name, manifest.version)
        kind: Any = "signal" if manifest.input.is_signal else "picture"
        model, passed = Engines(match.profile, facts, settings.engine).open(folder, kind)
        try:
            for reason in passed:
                print(f"passed over: {reason}")
            print(f"{manifest.id} runs on {model.engine.label}")
            _golden(model)
        finally:
            model.close()
        before = next(iter(library.versions(manifest.name)), None)
        _install(store, folder)
        store.activate(
            manifest.name,
            manifest.version,
            before=before.version
            if before is not None and before.version != manifest.version
            else None,
        )
    print(f"{manifest.id} is installed and live")
    return 0


def _install(store: Any, folder: Any) -> None:
    from ..install import install_folder

    install_folder(store, folder)


def _next_version(library: Any, name: str) -> str:
    """Give the highest known version + 1."""
    versions = [entry.version for entry in library.versions(name) if entry.version]
    if not versions:
        return "1"
    return str(max(version_key(version) for version in versions)[0] + 1)


def _unpacked(path: Path, options: Options) -> Any:
    """Unpack a package; what lies on this disk is trusted, but its digests must still agree."""
    if options.name is not None or options.model_version is not None:
        raise UsageError(
            "--name and --version: a package has its own; unpack it to rename the model"
        )
    from ..bringing import unpacked

    return unpacked(path)


def _golden(model: Any) -> None:
    from ..golden import compare_golden

    agreement = compare_golden(model)
    if agreement is None:
        print("no golden.npz: its outputs are not compared with anything")
        return
    if not agreement.passed:
        raise ModelError(f"{model.id}: golden: {agreement.why}")
    print(f"golden: {agreement.why}")
