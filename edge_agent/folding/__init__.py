"""Preprocessing folded into the network, where that changes no number.

An eight-bit network of floats begins by turning each number into one of 256 steps. A pixel has 256
values, too: which step each of them becomes can be written down once. So that first operation is
cut off, and bytes go in; looking a byte up is all that is left of mean, scale and quantisation, and
where each byte is its own step, not even that.

What was tried and left out, measured at 320x240 on two x86 cores: laying the picture out for the
network within the graph (0.15 ms, `cv2.split` does it in 0.02); the order of colours in the first
weights (planes are put in whichever order for nothing); mean and scale of float networks in
OpenVINO's preprocessing (as long as a look-up, and it takes no other inputs than pictures any
more, such as golden ones); binding buffers to ONNX Runtime (a call borrows NumPy's as it is).

`fold` lies on the way to the first result and imports next to nothing; `find` and `cut` are for
those who load the network itself.
"""
