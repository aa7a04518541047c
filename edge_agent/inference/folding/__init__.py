"""Preprocessing folded into the network, if that changes no number.

An eight-bit network that takes floats begins by quantizing each number to one of 256 steps. A pixel
has 256 values, too, so the step of each value can be computed once. That first operation is cut
off, and the network takes bytes; mean, scale, and quantization become a table lookup, or nothing
at all if each byte is its own step. If an eight-bit convolution follows, which both engines compute
with the colors last, the picture is not split into planes either.

Tried and left out, on two x86 cores with rfb320: the order of colors in the first weights (the
order costs nothing if planes are split, and 0.006 ms if not); a float network's mean and scale in
OpenVINO's preprocessing (saves 0.05 ms of 2.3, but such a network then takes only pictures, and so
no golden tensors); buffers bound to ONNX Runtime, and outputs bound to OpenVINO (no gain: see
`engines`).

`fold` is on the path to the first result and imports almost nothing; `find` and `cut` are for
loading the original network.
"""
