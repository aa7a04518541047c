"""Preprocessing folded into the network, where that changes no number.

An eight-bit network of floats begins by turning each number into one of 256 steps. A pixel has 256
values, too: which step each of them becomes can be written down once. So that first operation is
cut off, and bytes go in; looking a byte up is all that is left of mean, scale and quantization, and
where each byte is its own step, not even that. Where eight bits are convolved next, which both
engines do with the colors last, the picture is not taken apart into planes either.

What was tried and left out, on two x86 cores, rfb320: the order of colors in the first weights (it
costs nothing where planes are taken apart, and 0.006 ms where not); a float network's mean and
scale in OpenVINO's preprocessing (0.05 ms of 2.3 gained, but such a network takes nothing but
pictures anymore, and so no golden tensors); buffers bound to ONNX Runtime, and outputs bound to
OpenVINO (nothing gained: see `engines`).

`fold` lies on the way to the first result and imports next to nothing; `find` and `cut` are for
those who load the network itself.
"""
