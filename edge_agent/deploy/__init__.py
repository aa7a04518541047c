"""A model's way from the broker to the frames, and back.

transfers   offer, blocks, whole packages: until all of it is durable on the disk
flusher     makes blocks durable, then acknowledges them
deployer    verify, try, shadow, go live, probation; rollback, activate, delete
trial       what happens to a candidate in a process of its own
shadow      what happens to it beside the incumbent, on live frames
"""
