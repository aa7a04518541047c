"""Pictures to tensors: resize, colour, scale and layout in as few passes as there can be.

A pixel has 256 values, so everything that happens to one after the resize (mean, scale, rounding,
saturation, type) is a table of 256 numbers for each channel, worked out once in double precision.
Looking up is exact for every type and was as fast as any arithmetic (320x240: 0.11 ms).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, SampleError
from ..manifest import PICTURE_LAYOUTS, InputSpec
from ..records import Array, TensorSpec
from .inputs import constants, sample_input
from .placement import Placement

DTYPES = ("uint8", "int8", "uint16", "int16", "float16", "float32")


@dataclass(frozen=True, slots=True, eq=False)
class PicturePlan:
    """How every picture becomes the network's input. Threads share it: it keeps nothing."""

    spec: InputSpec
    tensor: TensorSpec
    shape: tuple[int, ...]
    """Of the tensor, every size known."""
    size: tuple[int, int]
    """Width and height of the picture in it."""
    tables: NDArray[np.generic] | None
    """(channels, 256) in the network's order of channels; None: pixels go in as they are."""
    constants: dict[str, Array]

    def __call__(self, data: Array) -> tuple[dict[str, Array], Placement]:
        """Resize, recolour and scale one picture (height, width, 3) uint8 BGR."""
        if data.ndim != 3 or data.shape[2] != 3 or data.dtype != np.uint8 or data.size == 0:
            raise SampleError(
                "picture: expected uint8 [height, width, 3], "
                f"found {data.dtype.name}{list(data.shape)}"
            )
        picture, placement = self._resized(data)
        return {self.tensor.name: self._scaled(picture), **self.constants}, placement

    def _resized(self, data: Array) -> tuple[Array, Placement]:
        """Bring a picture to the network's size, as `input.resize` says."""
        import cv2

        width, height = self.size
        source_height, source_width = data.shape[:2]
        method = {
            "linear": cv2.INTER_LINEAR,
            "area": cv2.INTER_AREA,
            "cubic": cv2.INTER_CUBIC,
            "nearest": cv2.INTER_NEAREST,
        }[self.spec.interpolation]
        left = top = 0
        if self.spec.resize == "letterbox":
            ratio = min(width / source_width, height / source_height)
            # As the two families that letterbox do it: YOLOX, at the top left, cuts the fraction
            # of a pixel off, Ultralytics, in the middle, rounds. It costs a weak box to mix them up
            # (measured). The 1e-6 is for 415.9999999, which is 416.
            centered = self.spec.anchor == "center"
            part_of_pixel = 0.5 if centered else 1e-6
            new_width = min(width, max(1, int(source_width * ratio + part_of_pixel)))
            new_height = min(height, max(1, int(source_height * ratio + part_of_pixel)))
            if centered:
                left, top = (width - new_width) // 2, (height - new_height) // 2
            canvas = np.full((height, width, 3), round(self.spec.pad), np.uint8)
            place = canvas[top : top + new_height, left : left + new_width]
            cv2.resize(data, (new_width, new_height), dst=place, interpolation=method)
            scale_x, scale_y = new_width / source_width, new_height / source_height
            offset_x, offset_y = float(left), float(top)
            picture: Array = canvas
        elif self.spec.resize == "crop":
            # The largest cut of the network's own shape, times the ratio; of a square network
            # that is the ratio's share of the shorter side.
            part = self.spec.crop_ratio * min(source_width / width, source_height / height)
            cut_width = min(source_width, max(1, round(width * part)))
            cut_height = min(source_height, max(1, round(height * part)))
            left, top = (source_width - cut_width) // 2, (source_height - cut_height) // 2
            cut = data[top : top + cut_height, left : left + cut_width]
            picture = cv2.resize(cut, self.size, interpolation=method)
            scale_x, scale_y = width / cut_width, height / cut_height
            offset_x, offset_y = -left * scale_x, -top * scale_y
        else:
            picture = cv2.resize(data, self.size, interpolation=method)
            scale_x, scale_y = width / source_width, height / source_height
            offset_x = offset_y = 0.0
        return picture, Placement(
            width, height, scale_x, scale_y, offset_x, offset_y, source_width, source_height
        )

    def _scaled(self, picture: Array) -> Array:
        """Put the resized BGR picture into a new tensor of the network's shape and type."""
        import cv2

        out = np.empty(self.shape, np.dtype(self.tensor.dtype))
        # OpenCV 4 looks up no half floats; their bits travel as uint16 all the same.
        raw = out.view(np.uint16) if out.dtype == np.float16 else out
        if self.spec.color == "gray":
            _look_up(cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY), self.tables, raw.reshape(self._hw))
        elif self.spec.layout == "nhwc":
            if self.spec.color == "rgb":
                picture = cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
            _look_up(picture, self.tables, raw.reshape(*self._hw, 3))
        else:
            self._fill_planes(picture, raw.reshape(3, *self._hw))
        return out

    def _fill_planes(self, picture: Array, out: Array) -> None:
        import cv2

        order = [0, 2, 1, 1, 2, 0] if self.spec.color == "rgb" else [0, 0, 1, 1, 2, 2]
        planes = out if self.tables is None else np.empty(out.shape, np.uint8)
        cv2.mixChannels([picture], list(planes), order)
        if self.tables is not None:
            for plane, table, target in zip(planes, self.tables, out, strict=True):
                cv2.LUT(plane, table, dst=target)

    @property
    def _hw(self) -> tuple[int, int]:
        return self.size[1], self.size[0]


def picture_plan(spec: InputSpec, inputs: tuple[TensorSpec, ...]) -> PicturePlan:
    """Check that pictures, manifest and network fit each other, and prepare the tables.

    Raises:
        ModelError: expected and found.

    """
    if spec.is_signal:
        raise ModelError(
            "input: the source gives pictures, but the manifest describes windows of a signal "
            "(channels, window or layout)"
        )
    tensor = sample_input(spec, inputs)
    if tensor.dtype not in DTYPES:
        raise ModelError(
            f"input {tensor}: expected one of {', '.join(DTYPES)}, found {tensor.dtype}"
        )
    shape, size = _measure(spec, tensor)
    channels = 1 if spec.color == "gray" else 3
    return PicturePlan(
        spec, tensor, shape, size, _tables(spec, tensor.dtype, channels), constants(spec, inputs)
    )


def _measure(spec: InputSpec, tensor: TensorSpec) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Read width and height off the tensor's shape, and see that the rest is as expected."""
    rank = len(tensor.shape)
    if rank not in {3, 4}:
        raise ModelError(
            f"input {tensor}: expected a picture of 3 dimensions, or 4 with the batch, found {rank}"
        )
    if rank == 4 and tensor.shape[0] not in {1, None}:
        raise ModelError(f"input {tensor}: expected a batch of 1, found {tensor.shape[0]}")
    layout = spec.layout or "nchw"
    picture = tensor.shape[-3:]
    wanted = 1 if spec.color == "gray" else 3
    at = {"nchw": 0, "nhwc": 2}
    if picture[at[layout]] not in {wanted, None}:
        other = next(name for name in PICTURE_LAYOUTS if name != layout)
        hint = f"; layout {other!r} would fit" if picture[at[other]] == wanted else ""
        raise ModelError(
            f"input {tensor}: expected {wanted} channels "
            f"(color {spec.color!r}, layout {layout!r}), found {picture[at[layout]]}{hint}"
        )
    height, width = picture[1:] if layout == "nchw" else picture[:2]
    for name, given, found in (("width", spec.width, width), ("height", spec.height, height)):
        if found is None and given is None:
            raise ModelError(f"input.{name}: missing; input {tensor} leaves its size open")
        if None not in {given, found} and given != found:
            raise ModelError(f"input.{name}: expected {found} (input {tensor}), found {given}")
    size = (width or spec.width or 0, height or spec.height or 0)
    whole = (wanted, size[1], size[0]) if layout == "nchw" else (size[1], size[0], wanted)
    return (1,) * (rank - 3) + whole, size


def _tables(spec: InputSpec, dtype: str, channels: int) -> NDArray[np.generic] | None:
    """Work out what each pixel value becomes, for each channel."""
    mean = np.array(spec.per_channel("mean", channels))[:, None]
    scale = np.array(spec.per_channel("scale", channels))[:, None]
    values = (np.arange(256.0) - mean) / scale
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        values = np.clip(np.rint(values), np.iinfo(kind).min, np.iinfo(kind).max)
    elif np.abs(values).max() > np.finfo(kind).max:
        raise ModelError(f"input.scale: (pixel - mean) / scale goes beyond what {dtype} can hold")
    tables: NDArray[np.generic] = values.astype(kind)
    if kind == np.uint8 and np.array_equal(values, np.tile(np.arange(256.0), (channels, 1))):
        return None
    if kind == np.float16:
        tables = tables.view(np.uint16)
    return tables


def _look_up(picture: Array, tables: NDArray[np.generic] | None, out: Array) -> None:
    """Write what the tables make of an interleaved picture into *out*, which has its shape."""
    import cv2

    if tables is None:
        out[...] = picture
    else:
        # (1, 256, channels): a table for each channel of interleaved pixels.
        cv2.LUT(picture, np.ascontiguousarray(tables.T)[None], dst=out)
