"""The manifest of a model: `model.toml`, section 4 of the public interface.

Independent of engines and weights; whether the network fits is checked when both are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..core.codec import storable
from ..core.constraints import Ge, Gt, Le, Plain
from ..core.errors import ModelError
from ..core.files import path_inside, read_plain_file
from ..core.frozen import record
from ..core.names import NAME_RULE, READINGS, is_name, is_version
from ..core.text import half_letter, label_trouble, labels_in, labels_trouble
from . import decoders, drift
from .decoders import DECODERS, DEFAULT, DecoderName, Task, decoders_of
from .edge_impulse import Mfe, Spectral, block_problems
from .transforms import LogMel, Stats, stats_problems, window_rate

if TYPE_CHECKING:
    from ..core.types import Kind

MANIFEST = "model.toml"
GOLDEN = "golden.npz"
"""File in a model's folder with inputs and their outputs; see `models.golden`."""
GOLDEN_ANSWERS = "golden.json"
"""The same for a language model: questions and their answers."""
GALLERY = "gallery.npz"
"""File with vectors by label, for embeddings."""
GOLDENS = "golden*.npz"
"""Pattern of golden files, including those of variants."""
KEPT = ".package/variant"
"""File in an installed model's folder with the name of the variant that is kept."""
MAX_LABEL_BYTES = 2**20
MAX_LABELS = 100_000

Interpolation = Literal["linear", "area", "cubic", "nearest"]
Rounding = Literal["half-even", "half-up", "down", "up"]
ANTIALIASED: frozenset[Interpolation] = frozenset({"linear", "cubic"})
"""Interpolations that `antialias` can be used with."""
PICTURE_LAYOUTS = ("nchw", "nhwc")
SIGNAL_LAYOUTS = ("ct", "tc", "flat-ct", "flat-tc")

_ELSEWHERE = {
    "mfcc": 'the parameters of transform = "mfcc" go below [input.logmel]',
    "std": "what is divided by is `scale`, in the units of `mean`",
}
"""Keys that other programs would have in `[input]`, and their equivalents here."""
_SHARED = ("name", "version", "task", "variants")  # the same for all variants
_STRICT: Any = {"extra": "forbid"}
Size = Annotated[int, Gt(0), Le(16384)]
# Bounded to exclude infinity; NaN is within no bounds.
Number = Annotated[float, Ge(-1e9), Le(1e9)]
Numbers = tuple[Number, ...]


@storable
@record(kw_only=True)
class InputSpec:
    """How a sample becomes the network's input."""

    __pydantic_config__ = _STRICT
    # Pictures
    color: Literal["rgb", "bgr", "gray"] = "rgb"
    layout: Literal["nchw", "nhwc", "ct", "tc", "flat-ct", "flat-tc"] | None = None
    """None: nchw for pictures, ct for signals."""
    width: Size | None = None
    height: Size | None = None
    """Only if the network leaves its size open."""
    resize: Literal["stretch", "letterbox", "crop"] = "stretch"
    crop_ratio: Annotated[float, Gt(0), Le(1)] = 1.0
    interpolation: Interpolation = "linear"
    antialias: Annotated[bool, Plain()] = False
    """Linear and cubic as in PIL and torchvision, which filter when they downscale."""
    rounding: Rounding | None = None
    """Rounding of a letterboxed size. None: half-even, or down if the anchor is top-left."""
    anchor: Literal["center", "top-left"] = "center"
    pad: Annotated[float, Ge(0), Le(255)] = 114.0
    # Signals
    channels: tuple[int | str, ...] = ()
    every: Annotated[int, Ge(1), Le(10_000_000)] = 1
    window: Annotated[int, Ge(1), Le(10_000_000)] | None = None
    hop: Annotated[int, Ge(1), Le(10_000_000)] | None = None
    """None: the same as the window, without overlap."""
    rate_hz: Annotated[float, Gt(0), Le(1e9)] | None = None
    transform: Literal["none", "logmel", "mfcc", "mfe", "spectral", "stats"] = "none"
    logmel: LogMel | None = None
    """Parameters of transforms logmel and mfcc."""
    mfe: Mfe | None = None
    spectral: Spectral | None = None
    stats: Stats | None = None
    """Parameters of transform stats."""
    resample_hz: Annotated[float, Ge(0), Le(1e6)] = 0.0
    """Rate that readings are resampled to; 0: they are used as they come."""
    lead: Annotated[int, Ge(0), Le(10_000_000)] = 0
    """Zeros before the first sample."""
    state: Mapping[str, str] = field(default_factory=dict)
    """Inputs that take an output of the previous window, and that output."""
    # Texts
    tokenizer: str = ""
    """File of the library tokenizers (tokenizer.json); empty: the model takes no texts."""
    max_tokens: Annotated[int, Ge(1), Le(1_000_000)] | None = None
    """Most tokens of a text; the rest is cut off. None: as many as the network takes."""
    # Both
    mean: Number | Numbers = ()
    scale: Number | Numbers = ()
    tensor: str | None = None
    """The input that takes the sample, if the network has several."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Constant values of the other inputs: name = number or nested list."""

    @property
    def given(self) -> frozenset[str]:
        """The inputs that do not take the sample: constants, and state of the previous window."""
        return frozenset([*self.fixed, *self.state])

    @property
    def is_signal(self) -> bool:
        """Whether the manifest describes windows of sensor data rather than pictures."""
        return bool(self.channels) or self.window is not None or self.layout in SIGNAL_LAYOUTS

    @property
    def kind(self) -> Kind:
        """The kind of sample that the manifest describes."""
        if self.tokenizer:
            return "text"
        return "signal" if self.is_signal else "picture"

    def per_channel(self, name: Literal["mean", "scale"], count: int) -> tuple[float, ...]:
        """Return `mean` or `scale` once for each of *count* channels.

        Raises:
            ModelError: they are given for another number of channels, or a scale is 0.
        """
        given = getattr(self, name)
        values = (float(given),) if isinstance(given, int | float) else tuple(given)
        values = values or (0.0 if name == "mean" else 1.0,)
        if len(values) == 1:
            values *= count
        if len(values) != count:
            raise ModelError(f"input.{name}: expected 1 or {count} numbers, found {len(values)}")
        if name == "scale" and 0.0 in values:
            raise ModelError("input.scale: must not be 0, it divides")
        return values


@storable
@record(kw_only=True)
class OutputSpec:
    """How the network's outputs become findings."""

    __pydantic_config__ = _STRICT
    decoder: DecoderName | None = None
    layout: str = ""
    """Which family's layout it is, for decoders that read several."""
    anchors: Numbers = ()
    """Width and height of each anchor, finest level first; in cells for YOLOv2, else in pixels."""
    threshold: Number | str | None = None
    """A string like "p99" means that quantile of the first windows' scores."""
    label_above: str = ""
    """What a score above the threshold means, such as "speech"; for task anomaly."""
    learn: Annotated[int, Ge(2), Le(1_000_000)] = 500
    """Number of windows to learn a quantile from, or of results to learn the usual values from."""
    smooth: str | None = None
    """"k/n": a result is only reported if it holds in k of the last n windows."""
    iou: Annotated[float, Gt(0), Le(1)] | None = None
    """Overlap for non-maximum suppression. None: 0.45 if the family leaves it to the decoder."""
    agnostic: Annotated[bool, Plain()] = False
    """Whether boxes of different classes suppress each other."""
    max_detections: Annotated[int, Ge(0), Le(100_000)] = 0
    """At most this many, the best; 0: as many as the family's own postprocessing keeps."""
    labels: str | tuple[str, ...] = ()
    first_label: Annotated[int, Ge(-1), Le(10)] = 0
    top_k: Annotated[int, Ge(1), Le(100_000)] = 5
    pooling: Literal["mean", "cls"] = "mean"
    """A text's vector: the mean of its tokens' vectors, or the first one."""
    points: Annotated[int, Ge(0), Le(10_000)] = 0
    """For task keypoints: the number of points per object."""
    mask: Annotated[bool | None, Plain()] = None
    """Whether results include masks. None: those of instances, not those of the whole frame."""
    vector: Annotated[bool | None, Plain()] = None
    """Whether results include a picture's embedding. None: only without a gallery."""
    scale: Number = 1.0
    zero_point: Number = 0.0
    names: Mapping[str, str] = field(default_factory=dict)
    """Tensor name by role, for outputs not found by shape and usual names."""


@storable
@record(kw_only=True)
class TrialSpec:
    """Limits for a candidate; they may be stricter than the device's, never looser."""

    __pydantic_config__ = _STRICT
    tolerance: Annotated[float, Ge(0), Le(1e9)] = 0.05
    golden: Annotated[bool, Plain()] | None = None
    shadow_frames: Annotated[int, Ge(0), Le(1_000_000)] | None = None
    min_agreement: Annotated[float, Ge(0), Le(1)] | None = None
    max_infer_ms: Annotated[float, Ge(0), Le(1e9)] | None = None
    probation_s: Annotated[float, Ge(0), Le(366 * 86400)] | None = None
    timeout_s: Annotated[float, Gt(0), Le(366 * 86400)] | None = None


@storable
@record(kw_only=True)
class Manifest:
    """The content of `model.toml`."""

    __pydantic_config__ = _STRICT
    name: str
    version: str
    task: Task
    file: str
    input: InputSpec = field(default_factory=InputSpec)
    output: OutputSpec = field(default_factory=OutputSpec)
    trial: TrialSpec = field(default_factory=TrialSpec)
    description: str = ""
    license: str = ""
    to_decide: tuple[str, ...] = ()
    """The open questions of a draft, see `questions`."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By architecture, profile, or engine: the keys that differ there."""

    @property
    def id(self) -> str:
        """name@version, as in results."""
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def decoder(self) -> DecoderName:
        """The decoder that is named, or the default."""
        if self.output.decoder is not None:
            return self.output.decoder
        (only, *others) = decoders_of(self.task)
        return DEFAULT if others else only


@storable
@record
class ModelFolder:
    """A model on disk whose manifest has been read, but not its network."""

    path: Path
    manifest: Manifest
    labels: tuple[str, ...]
    usual: drift.Usual | None = None
    """Usual values of its inputs and scores, if the folder has them."""
    variant: str = ""
    """The variant whose keys were applied to the manifest; empty: none."""

    @property
    def network(self) -> Path:
        return self.path / self.manifest.file

    @property
    def golden(self) -> Path:
        """The file of golden outputs, which may be missing."""
        name = GOLDEN_ANSWERS if self.manifest.task == "generate" else GOLDEN
        return _of_variant(self.path, name, self.variant)

    @property
    def finds(self) -> tuple[str, ...]:
        """The labels of its findings; empty if they are unknown."""
        return ("text",) if self.manifest.task == "text" else self.labels

    @property
    def gallery(self) -> Path:
        """The file of labeled vectors for embeddings, which may be missing."""
        return _of_variant(self.path, GALLERY, self.variant)

    @property
    def usual_file(self) -> Path:
        """The file that `usual` is read from, if it exists."""
        return _of_variant(self.path, drift.DRIFT, self.variant)


def load(folder: Path, here: Sequence[str] = ()) -> ModelFolder:
    """Read the manifest and labels of a model folder.

    Args:
        folder: the model's folder.
        here: variants that suit this device, the most specific first; for an installed model, the
            one that was kept is used instead.

    Raises:
        ModelError: something is missing, malformed, or contradictory.
    """
    from ..core.schema import read_toml

    where = folder / MANIFEST
    manifests = parse_all(read_toml(where, ModelError), str(where))
    variant = ""
    if len(manifests) > 1:
        kept = variant_kept(folder)
        variant = chosen(manifests, here) if kept is None else kept
        if variant not in manifests:
            raise ModelError(f"{folder / KEPT}: {variant!r} is no variant of it; install it again")
    return check(manifests[variant], folder, variant)


def chosen(variants: Collection[str], here: Sequence[str]) -> str:
    """Return the first of *here* among the variants; "": none, the manifest's own keys count."""
    return next((name for name in here if name in variants), "")


def variant_words(variant: str) -> str:
    """Return a variant's name for use in sentences."""
    return f"variant {variant}" if variant else "no variant"


def variant_kept(folder: Path) -> str | None:
    """Return the variant kept at installation; None: there are none, or it is not installed."""
    path = folder / KEPT
    if not path.exists():
        return None
    return _read(path, 1024, "the name of a variant").decode(errors="replace").strip()


def _of_variant(folder: Path, name: str, variant: str) -> Path:
    """Return a variant's own file, such as golden-arm.npz, if it exists, else the common one."""
    path = folder / name
    own = path.with_stem(f"{path.stem}-{variant}")
    return own if variant and own.exists() else path


def parse(data: Mapping[str, Any], where: str) -> Manifest:
    """Parse a manifest from the content of a TOML file, or from a model's own metadata."""
    return parse_all(data, where)[""]


def parse_all(data: Mapping[str, Any], where: str) -> dict[str, Manifest]:
    """Parse a manifest for each of its variants, and without any, under "".

    Raises:
        ModelError: one of them is malformed or contradictory.
    """
    from ..core.schema import merged

    own = _parse(data, where)
    found = {"": own}
    for name, table in own.variants.items():
        place = f"{where}: variants.{name}"
        if not is_name(name):
            raise ModelError(f"{where}: variants: {name!r} is not a name ({NAME_RULE})")
        for key in _SHARED:
            if key in table:
                raise ModelError(f"{place}: {key}: is the same for all variants; take it out")
        rest = {key: value for key, value in data.items() if key != "variants"}
        found[name] = replace(_parse(merged(table, rest), place), variants=own.variants)
    return found


def _parse(data: Mapping[str, Any], where: str) -> Manifest:
    """Parse a manifest without checking its variants."""
    from ..core.schema import build

    given = data.get("input")
    for key in given if isinstance(given, Mapping) else ():
        if key in _ELSEWHERE:
            raise ModelError(f"{where}: input.{key}: unknown key; {_ELSEWHERE[key]}")
    manifest = build(Manifest, data, where, ModelError)
    for key, trouble in _problems(manifest):
        raise ModelError(f"{where}: {key}: {trouble}")
    spec, rounding = manifest.input, DECODERS[manifest.decoder].rounding
    if spec.transform in {"logmel", "mfcc"} and spec.logmel is None:
        spec = replace(spec, logmel=LogMel())
    if rounding is not None and spec.resize == "letterbox" and not spec.rounding:
        spec = replace(spec, rounding=rounding)
    return manifest if spec is manifest.input else replace(manifest, input=spec)


def _problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the contradictions in a manifest: key, and text."""
    name, version, output = manifest.name, manifest.version, manifest.output
    if not is_name(name):
        yield "name", f"{name!r} is not a name ({NAME_RULE})"
    if name == READINGS:
        yield "name", f"{name!r} stands for no model in a pipeline; call this one otherwise"
    if not is_version(version):
        yield "version", f'{version!r} is not a version (dot-separated integers: "3" or "1.2")'
    allowed = decoders_of(manifest.task)
    takes = f"one of {', '.join(allowed)}"
    if output.decoder is None and manifest.decoder not in allowed:
        yield "output.decoder", f"is missing; task {manifest.task} takes {takes}"
    if manifest.decoder not in allowed:
        text = f"{manifest.decoder!r} does not fit task {manifest.task}; it takes {takes}"
        yield "output.decoder", text
    if half_letter("".join(output.labels)) is not None:
        # TOML cannot contain lone surrogates, but a Python literal in metadata can.
        yield "output.labels", "holds half of a letter; write it as UTF-8"
    if output.scale == 0:
        yield "output.scale", "must not be 0, every output would be"
    yield from decoders.layout_problems(
        manifest.decoder, manifest.task, output.layout, output.anchors
    )
    yield from _decision_problems(manifest)
    yield from _input_problems(manifest.input)
    if manifest.input.tokenizer and manifest.task != "embedding":
        yield "input.tokenizer", f"is for task embedding, found {manifest.task}"


def _decision_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the problems of the threshold, and of `smooth`."""
    threshold, smooth, task = manifest.output.threshold, manifest.output.smooth, manifest.task
    if isinstance(threshold, str):
        if task != "anomaly":
            yield "output.threshold", f"{threshold!r} is learned for task anomaly only"
        if re.fullmatch(r"p\d{1,2}(\.\d+)?", threshold) is None:
            text = f'expected a number, or a quantile as "p99", found {threshold!r}'
            yield "output.threshold", text
    elif threshold is not None and (trouble := decoders.threshold_trouble(task, threshold)):
        yield "output.threshold", trouble
    if (above := manifest.output.label_above) and task != "anomaly":
        yield "output.label_above", f"is for task anomaly only, found {task}"
    if (trouble := label_trouble(above)) is not None:
        yield "output.label_above", trouble
    if smooth is not None:
        if task not in {"anomaly", "classification"}:
            yield "output.smooth", f"is for tasks anomaly and classification, found {task}"
        found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", smooth)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            yield "output.smooth", f'expected "k/n" as "3/5", found {smooth!r}'
    if task == "anomaly" and threshold is None:
        yield "output.threshold", "is missing; above it a window is anomalous"


def _input_problems(spec: InputSpec) -> Iterator[tuple[str, str]]:
    """Yield the contradictions in `[input]`."""
    if spec.tokenizer and (spec.is_signal or spec.fixed or spec.state):
        yield "input.tokenizer", "is for texts; take out what is for windows of sensor data"
    layouts = ", ".join(SIGNAL_LAYOUTS)
    if spec.is_signal and spec.layout in PICTURE_LAYOUTS:
        text = f"{spec.layout!r} is for pictures, but input has channels or a window; it takes one"
        yield "input.layout", f"{text} of {layouts}"
    if spec.antialias and spec.interpolation not in ANTIALIASED:
        text = f"goes with interpolation {' or '.join(sorted(ANTIALIASED))}"
        yield "input.antialias", f"{text}, found {spec.interpolation!r}"
    for both in sorted(set(spec.fixed) & set(spec.state)):
        yield "input.state", f"{both!r} is also given in input.fixed"
    if spec.state and not spec.is_signal:
        yield "input.state", "is for signals; give input.window"
    if spec.transform != "none" and not spec.is_signal:
        text = f"{spec.transform!r} is for signals; give input.window or a layout of {layouts}"
        yield "input.transform", text
    rate = window_rate(spec.resample_hz, spec.rate_hz, spec.every)
    yield from block_problems(spec.transform, spec.mfe, spec.spectral, spec.window, rate)
    of = () if spec.stats is None else spec.stats.of
    found = stats_problems(of, spec.window, rate) if spec.transform == "stats" else ()
    yield from ((f"input.{key}", text) for key, text in found)


def check(manifest: Manifest, folder: Path, variant: str = "") -> ModelFolder:
    """Check that the files a manifest names exist and are inside its folder; read the labels."""
    where = str(folder / MANIFEST) + (f": variants.{variant}" if variant else "")
    network = path_inside(folder, manifest.file, f"{where}: file")
    if network.suffix not in {".onnx", ".xml", ".tflite"}:
        raise ModelError(f"{where}: file: {manifest.file!r} is neither .onnx nor .xml nor .tflite")
    if network.suffix == ".xml" and not network.with_suffix(".bin").is_file():
        raise ModelError(
            f"{where}: file: {network.with_suffix('.bin').name} is missing beside {manifest.file}"
        )
    if manifest.input.tokenizer:
        path_inside(folder, manifest.input.tokenizer, f"{where}: input.tokenizer")
    labels = manifest.output.labels
    if isinstance(labels, str):
        text = path_inside(folder, labels, f"{where}: output.labels")
        try:
            written = _read(text, MAX_LABEL_BYTES, "labels").decode("utf-8-sig")
            labels = labels_in(written, letters=manifest.task == "text")
        except UnicodeDecodeError:
            raise ModelError(f"{text}: is not UTF-8 text") from None
        if not 0 < len(labels) <= MAX_LABELS:
            raise ModelError(
                f"{text}: {len(labels)} labels, expected 1 to {MAX_LABELS}, one a line"
            )
    gallery = _of_variant(folder, GALLERY, variant)
    if manifest.task == "embedding" and not labels and gallery.exists():
        from .npz import read_npz

        labels = tuple(read_npz(gallery, str(gallery)))
    if (trouble := labels_trouble(labels)) is not None:
        raise ModelError(f"{where}: output.labels: {trouble}")
    usual, path = None, _of_variant(folder, drift.DRIFT, variant)
    if path.exists():
        data = _read(path_inside(folder, path.name, str(path)), drift.MAX_BYTES, "distributions")
        usual = drift.read(data, tuple(map(str, manifest.input.channels)), str(path))
    return ModelFolder(folder, manifest, labels, usual, variant)


def _read(path: Path, limit: int, what: str) -> bytes:
    try:
        return read_plain_file(path, limit, ModelError, what)
    except OSError as problem:
        raise ModelError(f"{path}: cannot be read: {problem.strerror}") from None
